SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32)
  topic, COUNT(*) AS clicked
FROM clicks JOIN pages ON clicks.page = pages.page
GROUP BY window(clicked, '1 day'), topic
