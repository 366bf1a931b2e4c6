-- Edits and editors per wiki and day. Editors work on few wikis, so a bound on the keys of one user (max_groups_contributed)
-- buys more than a bound on edits alone.
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (
    epsilon = 6, delta = 1e-9, privacy_unit_column = user_id,
    max_rows_contributed = 16, max_rows_per_group = 8, max_groups_contributed = 2,
    trigger_interval = INTERVAL 1 HOUR, allowed_lateness = INTERVAL 1 HOUR
  )
  key AS wiki,
  COUNT(*) AS edits,
  COUNT(DISTINCT user_id) AS editors,
  SUM(value, contribution_bounds_per_row => (-1000, 1000)) AS characters
FROM wiki
GROUP BY window(ts, '1 day'), wiki;
