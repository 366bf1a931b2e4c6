SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32, max_rows_per_group = 1, trigger_interval = '6 hours', allowed_lateness = '6 hours', carry_windows = 5)
  url, COUNT(*) AS views
FROM visits
GROUP BY window(ts, '1 day'), url
