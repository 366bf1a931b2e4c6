"""A toy mechanism: all that a mechanism needs, and no more; the how-to of CONTRIBUTING.md names these files."""
