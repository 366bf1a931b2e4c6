SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 4, trigger_interval = '1 hour', max_grouping_keys = 1)
  url, COUNT(*) AS views
FROM visits
GROUP BY ROLLUP(url)
