SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 16, sketch_depth = 9, refresh_cycle = 2)
  url, COUNT(*) AS views
FROM visits
GROUP BY window(ts, '1 day'), url
