"""The local engine: FROM in DuckDB, then the same steps as on Spark. The only room that imports duckdb; no JVM."""
