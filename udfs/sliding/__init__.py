"""Sliding windows for ever: one measurement per pane (slide) and bin, and what is made of it. Pure steps, all bins at once."""
