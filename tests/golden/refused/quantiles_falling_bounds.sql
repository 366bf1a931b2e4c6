SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 8, trigger_interval = '1 day')
  APPROX_QUANTILES(seconds, 4, contribution_bounds_per_row => (60, 0)) AS quartiles
FROM visits
