SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32, max_rows_per_group = 2, max_groups_contributed = 4, release = RESELECT, trigger_interval = '6 hours')
  url, COUNT(*) AS views
FROM visits
GROUP BY window(ts, '1 day', '6 hours'), url
