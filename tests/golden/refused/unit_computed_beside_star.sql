SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32)
  banner, COUNT(*) AS clicks
FROM (SELECT *, 'everyone' AS user_id FROM clicks)
GROUP BY window(clicked, '1 hour'), banner
