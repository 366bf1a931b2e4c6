-- Invoice lines per product over the whole stream, 100 triggers: four weeks of two thousand customers release nothing at all.
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-7, privacy_unit_column = user_id, max_rows_contributed = 32, trigger_interval = INTERVAL 4 DAYS)
  key AS product,
  COUNT(*) AS lines
FROM retail
WHERE value > 0
GROUP BY window(ts, INTERVAL 400 DAYS, INTERVAL 400 DAYS, INTERVAL 144 DAYS), product;
