SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32)
  page, COUNT(*) AS views
FROM (SELECT user_id, ts, substring(page, 1, 100) AS page FROM (SELECT *, lower(url) AS page FROM visits WHERE status < 400) WHERE page <> '') AS cut
GROUP BY window(ts, '1 day'), page
