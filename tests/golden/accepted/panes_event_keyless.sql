SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 0, privacy_level = EVENT, smoothing = NONE)
  COUNT(*) AS views, SUM(seconds, contribution_bounds_per_row => (0, 60)) AS time_spent, AVG(seconds, contribution_bounds_per_row => (0, 60)) AS mean
FROM visits
GROUP BY window(ts, '15 minutes', '1 minute')
