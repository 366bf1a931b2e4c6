SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = (phone, country), max_rows_contributed = 32)
  callee, COUNT(*) AS calls, COUNT(DISTINCT country, phone) AS callers, SUM(minutes, contribution_bounds_per_row => (0, 120)) AS talked
FROM calls
GROUP BY window(started, '1 day'), callee
