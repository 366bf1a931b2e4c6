"""What runs on the executors: pure, columnar, free of Spark. Steps take a state and rows and return a state and output."""
