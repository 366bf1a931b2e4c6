-- Sliding windows and the default period: a window holds records of two periods; units count once in it
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 6, delta = 1e-7, privacy_unit_column = user_id, max_rows_contributed = 4,
    max_rows_per_group = 1, min_privacy_units_per_group = 5, trigger_interval = '1 hour')
  url, COUNT(*) AS views, COUNT(DISTINCT user_id) AS visitors
FROM visits GROUP BY window(ts, '4 hours', '2 hours'), url
