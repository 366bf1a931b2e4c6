SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = v.user_id, max_rows_contributed = 32)
  v.url, COUNT(v.seconds) AS timed
FROM visits AS v
GROUP BY window(v.ts, '1 day'), v.url
