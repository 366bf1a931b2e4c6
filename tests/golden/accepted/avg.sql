SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32)
  url, AVG(seconds, contribution_bounds_per_row => (0, 60)) AS mean_time
FROM visits
GROUP BY window(ts, '1 day'), url
