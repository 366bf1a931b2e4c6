SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ()
  url, COUNT(*) AS views
FROM visits
GROUP BY window(ts, '1 day'), url
