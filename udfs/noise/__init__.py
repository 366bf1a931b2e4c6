"""Randomness, and what noise is made of it."""
