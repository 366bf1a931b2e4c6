"""Groups of running totals, with their state and their release at every trigger. Pure steps."""
