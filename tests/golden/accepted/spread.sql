-- Without an ending both words mean the sample's, as in Spark and GoogleSQL.
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32)
  url, COUNT(*) AS views, STDDEV(seconds, contribution_bounds_per_row => (0, 60)) AS spread,
  VARIANCE(seconds, contribution_bounds_per_row => (0, 60)) AS variance
FROM visits
GROUP BY window(ts, '1 day'), url
