SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32)
  tag, COUNT(*) AS views
FROM visits, UNNEST(tags) AS t(tag)
GROUP BY window(ts, '1 day'), tag
