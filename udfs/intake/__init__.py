"""Contribution bounding, with the state of what each unit has used. Pure steps."""
