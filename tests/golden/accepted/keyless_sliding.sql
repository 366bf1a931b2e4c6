SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32, trigger_interval = '1 hour', allowed_lateness = '30 minutes')
  COUNT(*) AS views, COUNT(DISTINCT user_id) AS visitors
FROM visits
GROUP BY window(ts, '1 day', '8 hours')
