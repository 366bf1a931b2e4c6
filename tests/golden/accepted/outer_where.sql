SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32)
  url, COUNT(*) AS views
FROM visits
WHERE status = 200 AND (url LIKE '/shop/%' OR (url RLIKE r'^/cart/\d+$')) AND NOT (referrer IS NULL)
GROUP BY window(ts, '1 day'), url
