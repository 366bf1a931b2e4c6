"""Measures: what is read off noisy sums, that is averages, spreads, quantiles, and their errors. Pure steps."""
