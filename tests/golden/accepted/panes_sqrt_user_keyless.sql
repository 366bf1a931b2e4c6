SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-9, privacy_level = USER, privacy_unit_column = user_id, max_rows_contributed = 5, counter = WINDOW_SQRT)
  COUNT(*) AS views
FROM visits
GROUP BY window(ts, '15 minutes', '1 minute')
