-- Requests per path and hour; a path appears only when at least ten hosts asked for it and the noisy test says so.
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (
    epsilon = 4, delta = 1e-8, privacy_unit_column = user_id, max_rows_contributed = 32, max_rows_per_group = 4,
    min_privacy_units_per_group = 10, trigger_interval = '10 minutes'
  )
  key AS path,
  COUNT(*) AS requests,
  SUM(value, contribution_bounds_per_row => (0, 100000)) AS bytes_sent
FROM weblog
GROUP BY window(ts, '1 hour'), path;
