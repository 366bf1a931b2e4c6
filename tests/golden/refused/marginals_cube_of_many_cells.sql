SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 4, trigger_interval = '1 hour')
  url, 1 + length(url) AS big, status + 1 AS huge, hour, COUNT(*) AS views
FROM (SELECT user_id, ts, url, status, seconds, hour(ts) AS hour FROM visits)
GROUP BY CUBE(url, big, huge, hour)
