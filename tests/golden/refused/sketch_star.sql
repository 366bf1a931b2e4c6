SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 16)
  APPROX_TOP_COUNT(*, 50) AS top, COUNT_SKETCH(DISTINCT url) AS cells
FROM visits
GROUP BY window(ts, '1 day')
