SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 20, max_rows_per_group = 4, max_groups_contributed = 3, counter = WINDOW_SQRT, group_selection_strategy = PUBLIC_GROUPS, public_groups = (SELECT page FROM pages))
  url, COUNT(*) AS views
FROM visits
GROUP BY window(ts, '15 minutes', '1 minute'), url
