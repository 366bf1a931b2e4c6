"""Marginals of a table over declared domains: the numbers, what they cost, and answers with exact error bars. Steps: `dpsql.udfs.marginals`."""
