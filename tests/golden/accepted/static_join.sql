SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = v.user_id, max_rows_contributed = 32)
  p.topic, COUNT(*) AS views
FROM visits AS v LEFT JOIN pages p ON lower(v.url) = p.page
GROUP BY window(v.ts, '1 day'), p.topic
