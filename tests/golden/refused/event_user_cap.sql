SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 0.1, delta = 0, privacy_level = EVENT, group_selection_strategy = PUBLIC_GROUPS, public_groups = (SELECT channel FROM channels))
  key, COUNT(*) AS edits
FROM wiki
GROUP BY window(ts, '15 minutes', '1 minute'), key
