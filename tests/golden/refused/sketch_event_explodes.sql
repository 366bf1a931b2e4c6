SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-6, privacy_level = EVENT)
  COUNT_SKETCH(tag) AS cells
FROM (SELECT ts, explode(tags) AS tag FROM visits)
GROUP BY window(ts, '1 day')
