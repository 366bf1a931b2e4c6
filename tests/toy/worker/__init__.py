"""On the workers: rows."""
