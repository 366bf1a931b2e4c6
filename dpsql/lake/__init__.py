"""What a run keeps and publishes, read and repaired without an engine."""
