-- Invoice lines per product and four weeks. One allowance per customer for ever (STREAM), so the budget is spent once, not per window.
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (
    epsilon = 6, delta = 1e-7, privacy_unit_column = user_id, max_rows_contributed = 64, max_rows_per_group = 4,
    contribution_period = STREAM, trigger_interval = INTERVAL 1 DAY
  )
  key AS product,
  COUNT(*) AS lines,
  SUM(value, contribution_bounds_per_row => (0, 100)) AS revenue
FROM retail
WHERE value > 0
GROUP BY window(ts, INTERVAL 28 DAYS), product;
