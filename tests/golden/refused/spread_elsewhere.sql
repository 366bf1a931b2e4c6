SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32, trigger_interval = '1 day')
  url, STDDEV(seconds, contribution_bounds_per_row => (0, 60)) AS spread
FROM visits
GROUP BY url
