SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-6, privacy_level = EVENT, counter = PANES)
  COUNT_SKETCH(url) AS cells
FROM visits
GROUP BY window(ts, '1 day')
