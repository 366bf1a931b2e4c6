SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 16, max_rows_per_group = 2, max_groups_contributed = 4, contribution_period = STREAM, sketch_depth = 15, sketch_width = 16384, counter = HONAKER)
  APPROX_TOP_COUNT(STRUCT(url, status), 50) AS top_pages
FROM visits
GROUP BY window(ts, '1 day')
