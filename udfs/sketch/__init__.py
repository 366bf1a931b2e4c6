"""Sketches: one keyed hash into d rows of w cells per window, noisy cells at triggers, and what can be read from them. Pure steps."""
