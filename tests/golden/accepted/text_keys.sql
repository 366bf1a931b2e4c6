SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = person, max_rows_contributed = 32)
  name, raw, COUNT(*) AS n
FROM typed
GROUP BY window(at, '1 day'), name, raw
