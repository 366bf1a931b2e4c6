SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 8, release = INTERVAL_TREE)
  url, COUNT(*) AS views
FROM visits
GROUP BY url, window(ts, '1 day')
