"""The command line, a file for each command; `run_query` for spark-submit. All that reads argv, the environment and signals."""
