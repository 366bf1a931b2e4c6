SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = v.user_id, max_rows_contributed = 32)
  v.url, COUNT(*) AS n
FROM visits v JOIN wiki w ON v.user_id = w.user_id
GROUP BY window(v.ts, '1 day'), v.url
