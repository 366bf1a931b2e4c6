SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-6, privacy_level = EVENT)
  COUNT_SKETCH(key) AS cells
FROM wiki
GROUP BY window(ts, '1 day')
