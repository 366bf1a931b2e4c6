SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-6, privacy_level = EVENT)
  APPROX_TOP_COUNT(url, 50) AS top
FROM visits
GROUP BY window(ts, '1 day')
