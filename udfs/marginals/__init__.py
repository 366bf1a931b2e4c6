"""Marginals of a growing table over declared domains: cells, noise, and least squares with its error bars."""
