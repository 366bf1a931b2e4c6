SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 16, group_selection_strategy = PUBLIC_GROUPS, public_groups = (SELECT page FROM pages))
  APPROX_TOP_COUNT(STRUCT(url, status), 50) AS top
FROM visits
GROUP BY window(ts, '1 day')
