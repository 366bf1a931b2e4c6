SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32)
  CASE WHEN status >= 500 THEN 'broken' WHEN status >= 400 THEN 'missing' ELSE 'fine' END AS outcome, COUNT(*) AS views
FROM visits
GROUP BY window(ts, '1 day'), outcome
