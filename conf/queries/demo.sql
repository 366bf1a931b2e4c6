-- The demo: editors, edits and characters added per channel (a wiki) of one day, refreshed every hour. Nobody listed the channels
-- beforehand: one appears at the first hour at which enough editors worked on it. Half of all editors made one edit and hardly anybody
-- edits more than two channels, so small bounds keep the noise small and hardly touch the number of editors, by which `dpsql show` ranks.
-- The number of edits is another matter: a few robots make four edits in ten, and at most four each of them count here. See --compare.
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (
    epsilon = 6, delta = 1e-9, privacy_unit_column = user_id,
    max_rows_contributed = 8, max_rows_per_group = 4, max_groups_contributed = 2,
    trigger_interval = INTERVAL 1 HOUR
  )
  key AS channel,
  COUNT(DISTINCT user_id) AS editors,
  COUNT(*) AS edits,
  SUM(value, contribution_bounds_per_row => (0, 250)) AS characters_added
FROM wiki
GROUP BY window(ts, '1 day'), channel;
