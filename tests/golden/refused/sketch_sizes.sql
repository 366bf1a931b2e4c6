SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-6, privacy_level = EVENT, sketch_depth = 4, sketch_width = 1000, refresh_cycle = 0, sketch = BLOOM)
  COUNT_SKETCH(url) AS cells
FROM visits
GROUP BY window(ts, '1 day')
