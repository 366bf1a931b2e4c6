SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32, group_selection_strategy = PUBLIC_GROUPS, public_groups = (SELECT page, topic FROM pages), min_privacy_units_per_group = 1, release = EVERY_TRIGGER, contribution_period = STREAM)
  lower(url) AS page, referrer AS topic, COUNT(DISTINCT user_id) AS visitors
FROM visits
GROUP BY window(ts, '1 day', '12 hours'), page, topic
