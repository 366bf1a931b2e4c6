"""The command line, a module for each command. Only it reads argv, the environment and signals. `run_query` is for spark-submit."""

if __name__ == "jobs":
    raise ImportError("the package is dpsql.jobs: import that")
