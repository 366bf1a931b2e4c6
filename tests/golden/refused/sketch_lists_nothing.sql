SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-6, privacy_level = EVENT, group_selection_strategy = PUBLIC_GROUPS, public_groups = (SELECT page FROM pages))
  COUNT_SKETCH(url) AS cells
FROM visits
GROUP BY window(ts, '1 day')
