"""The Spark engine: two streaming queries joined by a Delta table. The only room that imports pyspark."""
