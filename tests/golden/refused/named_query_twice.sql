WITH recent AS (SELECT * FROM visits), Recent AS (SELECT * FROM visits)
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32)
  url, COUNT(*) AS views
FROM recent
GROUP BY window(ts, '1 day'), url
