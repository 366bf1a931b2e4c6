"""Keyed noise: random words of named cells, counters, and their exact paths."""
