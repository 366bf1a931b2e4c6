"""For each mechanism its query, plan, cost and sentences. What they do to rows is in `udfs`."""
