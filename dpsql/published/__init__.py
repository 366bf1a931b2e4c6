"""Readers of public tables. They ask each table what it says of itself, and need no engine, secret or private file."""
