SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = phone, max_rows_contributed = 32)
  callee, COUNT(*) AS calls
FROM calls
GROUP BY window(started, '1 day'), callee
