SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (delta = 0, privacy_level = EVENT, group_selection_strategy = PUBLIC_GROUPS, public_groups = (SELECT page FROM pages))
  url, COUNT(*) AS views
FROM visits
GROUP BY window(ts, '15 minutes', '1 minute'), url
