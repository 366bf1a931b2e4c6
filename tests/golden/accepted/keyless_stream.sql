SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 16, contribution_period = STREAM)
  COUNT(DISTINCT user_id) AS visitors
FROM visits
GROUP BY window(ts, '1 day')
