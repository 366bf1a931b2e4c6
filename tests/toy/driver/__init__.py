"""On the driver: numbers."""
