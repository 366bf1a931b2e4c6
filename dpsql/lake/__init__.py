"""The lake: what a run keeps and publishes, read and mended without an engine."""
