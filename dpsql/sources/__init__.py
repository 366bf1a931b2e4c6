"""What `sources.yaml` declares of streams and static tables, and where they are."""
