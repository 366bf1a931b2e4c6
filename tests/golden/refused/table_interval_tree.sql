SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 8, trigger_interval = '1 day', release = INTERVAL_TREE)
  COUNT(*) AS views
FROM visits
