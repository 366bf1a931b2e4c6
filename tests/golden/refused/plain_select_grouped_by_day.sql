SELECT date_trunc('day', ts) AS day, url, COUNT(*), MAX(seconds) AS longest, STDDEV(seconds) AS spread
FROM visits
GROUP BY day, url
ORDER BY 3 DESC
