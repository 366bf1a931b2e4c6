SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32)
  CASE WHEN status = 200 THEN 'a' ELSE 'b' END, EXTRACT(HOUR FROM ts), tags[0], NOT (status = 1), CAST(status AS STRING), -status, status IN (1, 2), url IS NULL, COUNT(*) AS n
FROM visits
GROUP BY window(ts, '1 day')
