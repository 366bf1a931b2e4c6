"""Intake: what one unit may contribute, the state of what it has, and the leaves that its records fall into. Pure steps."""
