"""Numbers of a plan and words about it, for the planners of several mechanisms."""
