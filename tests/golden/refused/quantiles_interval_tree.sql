SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = owner_id, max_rows_contributed = 8, trigger_interval = '1 hour', release = INTERVAL_TREE)
  APPROX_QUANTILES(balance, 4, contribution_bounds_per_row => (0, 10000)) AS quartiles
FROM accounts
