"""What is promised and what is spent."""
