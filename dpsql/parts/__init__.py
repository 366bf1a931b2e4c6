"""Parts: numbers of a plan, and words about it, that planners of several mechanisms need."""
