SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 20, delta = 9.9e-6, privacy_unit_column = user_id, max_rows_contributed = 1000000, max_rows_per_group = 1000, max_groups_contributed = 2000, trigger_interval = '1 second', selection_weight_decay = 1, group_selection_share = 0.999)
  url, COUNT(*) AS views, COUNT(DISTINCT user_id) AS visitors, AVG(seconds, contribution_bounds_per_row => (-1, 1)) AS mean_time
FROM visits
GROUP BY window(ts, '10000 seconds'), url
