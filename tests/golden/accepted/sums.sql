SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32)
  key, SUM(value, contribution_bounds_per_row => (-10.5, 1e3)) AS total, SUM(abs(value), contribution_bounds_per_row => (0, 1000)) AS moved, COUNT(value) AS valued
FROM wiki
GROUP BY window(ts, '1 day'), key
