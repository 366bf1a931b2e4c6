SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 1, delta = 1e-9, privacy_level = EVENT, counter = PANES, grouping = RETROACTIVE, group_selection_strategy = PUBLIC_GROUPS, public_groups = (SELECT page FROM pages))
  url, COUNT(*) AS views
FROM visits
GROUP BY window(ts, '15 minutes', '1 minute'), url
