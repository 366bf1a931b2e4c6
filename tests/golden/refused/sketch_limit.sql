SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 16)
  APPROX_TOP_COUNT(url, 50) AS pages
FROM visits
GROUP BY window(ts, '1 day')
LIMIT 10
