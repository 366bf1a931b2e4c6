SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32, counter = SQRT, trigger_interval = '6 hours')
  STDDEV_POP(seconds, contribution_bounds_per_row => (0, 60)) AS spread, VAR_POP(seconds, contribution_bounds_per_row => (-10, 10)) AS variance
FROM visits
GROUP BY window(ts, '1 day')
