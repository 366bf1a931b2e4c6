SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32, group_selection_epsilon = 3, report_format = 'JSON', kappa = 3, max_groups = 4, contribution_bounds_per_group = (0, 5))
  url, COUNT(*) AS views
FROM visits
GROUP BY window(ts, '1 day'), url
