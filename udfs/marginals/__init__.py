"""Marginals of a table over declared domains: cells, noise, and least squares with its error bars."""
