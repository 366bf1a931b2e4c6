SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-6, privacy_level = EVENT, group_selection_strategy = PUBLIC_GROUPS, public_groups = (SELECT page FROM pages), refresh_cycle = 8, sketch_width = 1024, trigger_interval = '1 hour')
  APPROX_TOP_COUNT(url, 50) AS top_pages
FROM visits
GROUP BY window(ts, '1 day')
