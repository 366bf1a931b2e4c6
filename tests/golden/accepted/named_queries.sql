-- A named query may have the name of a source, and read it.
WITH visits AS (SELECT user_id, lower(url) AS url, ts FROM visits WHERE status = 200),
     pages_only AS (SELECT * FROM visits AS v WHERE url LIKE '%.html')
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32)
  url, COUNT(*) AS views
FROM pages_only AS p
GROUP BY window(ts, '1 day'), url
