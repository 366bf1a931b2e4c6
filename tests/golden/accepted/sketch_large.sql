SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-6, privacy_level = EVENT, sketch_depth = 31, sketch_width = 1048576)
  COUNT_SKETCH(lower(url)) AS pages
FROM visits
GROUP BY window(ts, '1 day')
