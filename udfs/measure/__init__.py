"""What is read off noisy sums, from averages to quantiles. Pure steps."""
