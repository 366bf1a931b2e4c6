SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 0.1, delta = 0, privacy_level = EVENT, grouping = PLANNED, group_selection_strategy = PUBLIC_GROUPS, public_groups = (SELECT page FROM pages))
  url, AVG(seconds, contribution_bounds_per_row => (0, 60)) AS mean
FROM visits
GROUP BY window(ts, '15 minutes', '1 minute'), url
