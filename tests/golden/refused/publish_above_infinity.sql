SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 0.1, delta = 0, privacy_level = EVENT, publish_above = 1e999, group_selection_strategy = PUBLIC_GROUPS, public_groups = (SELECT page FROM pages))
  url, COUNT(*) AS views
FROM visits
GROUP BY window(ts, '15 minutes', '1 minute'), url
