-- Pages of a web site: views, visitors and time spent per day, refreshed every quarter of an hour.
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (
    epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32,
    trigger_interval = INTERVAL 15 MINUTES
  )
  window.start,
  page,
  COUNT(*) AS views,
  COUNT(DISTINCT user_id) AS visitors,
  SUM(seconds, contribution_bounds_per_row => (0, 60)) AS time_spent
FROM (SELECT *, lower(url) AS page FROM visits WHERE status = 200)
GROUP BY window(ts, '1 day'), page;
