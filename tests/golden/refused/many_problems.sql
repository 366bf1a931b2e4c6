SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32, foo = 1, epsilon = 7)
  lower(url), MAX(seconds) AS longest, COUNT(*)
FROM visit WHERE rand() < 0.5
GROUP BY window(ts, '1 month'), 1
HAVING longest > 3
ORDER BY 1
LIMIT 10
