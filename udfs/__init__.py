"""What runs on the executors, without Spark. Pure, columnar steps take a state and rows and return a state and output."""

if __name__ == "udfs":
    raise ImportError("the package is dpsql.udfs: import that")
