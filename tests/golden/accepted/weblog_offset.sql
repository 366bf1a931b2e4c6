SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32)
  key, COUNT(*) AS hits
FROM weblog
GROUP BY window(ts, '1 day', '1 day', '-2 hours'), key
