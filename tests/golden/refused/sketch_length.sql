SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 16)
  APPROX_TOP_COUNT(url, 0) AS none, APPROX_TOP_COUNT(url, 10001) AS many, APPROX_TOP_COUNT(url, status) AS counted, APPROX_TOP_COUNT(url, 5.5) AS half
FROM visits
GROUP BY window(ts, '1 day')
