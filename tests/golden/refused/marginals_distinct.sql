SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 4, trigger_interval = '1 hour')
  url, COUNT(DISTINCT user_id) AS users
FROM visits
GROUP BY CUBE(url)
