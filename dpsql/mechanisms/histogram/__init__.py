"""The histogram: one noisy row per key and window at every trigger (docs/privacy/histogram.md)."""
