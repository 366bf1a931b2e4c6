SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 8, trigger_interval = '1 hour', counter = HONAKER, max_triggers = 24, contribution_period = STREAM)
  COUNT(*) AS views, COUNT(DISTINCT user_id) AS visitors
FROM (SELECT user_id, ts FROM visits WHERE status < 400)
