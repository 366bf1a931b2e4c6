SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 16, sketch_depth = 33, sketch_width = 33554432, refresh_cycle = 33554432)
  COUNT_SKETCH(url) AS pages
FROM visits
GROUP BY window(ts, '1 day')
