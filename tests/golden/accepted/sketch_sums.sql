SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 16, group_selection_strategy = PUBLIC_GROUPS, public_groups = (SELECT page FROM pages), sketch = COUNT_MIN, sketch_depth = 3, sketch_width = 512)
  APPROX_TOP_COUNT(url, 50) AS views, APPROX_TOP_SUM(url, seconds, 20, contribution_bounds_per_row => (0, 60)) AS longest, COUNT_SKETCH(url) AS pages
FROM visits
GROUP BY window(ts, '1 day', '1 hour')
