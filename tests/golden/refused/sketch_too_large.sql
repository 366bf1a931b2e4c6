SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-6, privacy_level = EVENT, sketch_depth = 31, sketch_width = 16777216, trigger_interval = '1 minute')
  COUNT_SKETCH(url) AS cells
FROM visits
GROUP BY window(ts, '1 day')
