SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 16, trigger_interval = '1 hour')
  APPROX_TOP_COUNT(url, 50) AS top
FROM visits

