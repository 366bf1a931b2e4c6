SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32)
  url, MAX(seconds) AS longest, approx_count_distinct(user_id) AS visitors, COUNT_IF(status = 200) AS fine
FROM visits
GROUP BY window(ts, '1 day'), url
