-- The wikis with the most edits of a day, from a sketch: its cells are published when the day is over, and then `dpsql ask` answers for any wiki.
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (
    epsilon = 2, delta = 1e-6, privacy_unit_column = user_id,
    max_rows_contributed = 4, max_rows_per_group = 2,
    trigger_interval = INTERVAL 1 HOUR
  )
  APPROX_TOP_COUNT(key, 10) AS top_wikis
FROM wiki
GROUP BY window(ts, '1 day');
