SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 0.1, delta = 0, privacy_level = EVENT, group_selection_strategy = PUBLIC_GROUPS, public_groups = (SELECT page FROM pages))
  tag, COUNT(*) AS views
FROM visits LATERAL VIEW explode(tags) t AS tag
GROUP BY window(ts, '15 minutes', '1 minute'), tag
