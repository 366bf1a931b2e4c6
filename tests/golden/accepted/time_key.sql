SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32)
  hour(ts) AS hour_of_day, date_trunc('DAY', ts) AS day, COUNT(*) AS views
FROM visits
GROUP BY window(ts, '7 days'), hour_of_day, day
