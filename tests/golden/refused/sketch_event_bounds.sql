SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-6, privacy_level = EVENT, group_selection_strategy = PUBLIC_GROUPS, public_groups = (SELECT page FROM pages), max_rows_contributed = 5, contribution_period = STREAM)
  APPROX_TOP_COUNT(url, 50) AS top
FROM visits
GROUP BY window(ts, '1 day')
