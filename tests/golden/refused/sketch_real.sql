SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-6, privacy_unit_column = person, max_rows_contributed = 2)
  APPROX_TOP_COUNT(STRUCT(real, exact, name), 50) AS top
FROM typed
GROUP BY window(at, '1 day')
