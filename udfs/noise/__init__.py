"""Keyed noise: random words of cells, and counters with exact paths."""
