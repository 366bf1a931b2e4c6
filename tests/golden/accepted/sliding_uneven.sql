SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32, max_rows_per_group = 2, trigger_interval = '2 hours')
  url, COUNT(*) AS views, AVG(seconds, contribution_bounds_per_row => (0, 60)) AS mean_time
FROM visits
GROUP BY window(ts, '25 hours', '10 hours', '1 hour'), url
