"""The mechanisms: what is asked of each, its plan, its cost, its sentences. What they do to rows is in `udfs`."""
