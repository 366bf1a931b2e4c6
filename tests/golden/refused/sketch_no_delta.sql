SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 0, privacy_level = EVENT)
  COUNT_SKETCH(url) AS cells
FROM visits
GROUP BY window(ts, '1 day')
