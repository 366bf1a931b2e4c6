-- The demo, live: its day goes by in half an hour, so the window is that long, and a trigger comes every minute.
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (
    epsilon = 6, delta = 1e-9, privacy_unit_column = user_id,
    max_rows_contributed = 8, max_rows_per_group = 4, max_groups_contributed = 2,
    trigger_interval = INTERVAL 1 MINUTE
  )
  key AS channel,
  COUNT(DISTINCT user_id) AS editors,
  COUNT(*) AS edits
FROM edits
GROUP BY window(ts, '30 minutes'), channel;
