SELECT url, COUNT(*) AS views FROM visits GROUP BY url
