SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 16, max_rows_per_group = 1, trigger_interval = INTERVAL 1 HOUR)
  APPROX_TOP_COUNT(url, 50) AS top_pages
FROM visits
GROUP BY window(ts, '1 day')
