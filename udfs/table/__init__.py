"""Tables: groups that live for ever, their state, and their release at every trigger. Pure steps."""
