SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32)
  url, COUNT(*) AS views
FROM visits WHERE date_format(ts, 'YYYY-MM-DD') = '2026' OR to_date(url, 'E') IS NULL
GROUP BY window(ts, '1 day'), url
