SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 16)
  APPROX_TOP_SUM(url, seconds, 50, contribution_bounds_per_row => (60, 0)) AS longest, APPROX_TOP_SUM(url, seconds, 50, contribution_bounds_per_row => (0, seconds)) AS computed, APPROX_TOP_COUNT(url, 5, contribution_bounds_per_row => (0, 1)) AS top, COUNT_SKETCH(url, limits => 3) AS cells
FROM visits
GROUP BY window(ts, '1 day')
