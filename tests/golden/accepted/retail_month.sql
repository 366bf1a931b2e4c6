SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32, trigger_interval = '1 day', max_rows_per_group = 4)
  key, COUNT(*) AS lines, SUM(value, contribution_bounds_per_row => (0, 100)) AS revenue
FROM retail
GROUP BY window(ts, '28 days'), key
