-- Edits by wiki and hour, and by each alone: from what is published `dpsql ask` answers questions over both, for ever and at no cost.
-- The values that keys can have are declared in sources.yaml (domains).
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (
    epsilon = 6, delta = 1e-9, privacy_unit_column = user_id,
    max_rows_contributed = 4,
    trigger_interval = INTERVAL 1 HOUR
  )
  channel, hour,
  COUNT(*) AS edits
FROM (SELECT user_id, ts, key AS channel, hour(ts) AS hour FROM wiki)
GROUP BY CUBE(channel, hour);
