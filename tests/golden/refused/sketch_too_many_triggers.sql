SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-6, privacy_level = EVENT, trigger_interval = '1 second')
  COUNT_SKETCH(url) AS cells
FROM visits
GROUP BY window(ts, '1 day')
