SELECT WITH DIFFERENTIAL_PRIVACY
  url, COUNT(*) AS views
FROM visits
GROUP BY window(ts, '1 day'), url
