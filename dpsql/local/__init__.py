"""The local engine: FROM in DuckDB, then the same steps as on Spark. Only it imports duckdb; it starts no JVM."""
