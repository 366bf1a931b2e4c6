SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32, trigger_interval = '1 day', keys_per_unit = 3)
  url, COUNT(*) AS views
FROM visits
GROUP BY url
