SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 16)
  approx_top_k(url, 10) AS top, count_min_sketch(url, 0.1, 0.9, 1) AS cells
FROM visits
GROUP BY window(ts, '1 day')
