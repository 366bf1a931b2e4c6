"""Readers of public tables, which ask each table what it says of itself; no engine, no secret, no private file."""
