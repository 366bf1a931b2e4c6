SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = owner_id, max_rows_contributed = 4, trigger_interval = '1 hour')
  branch, COUNT(*) AS n
FROM accounts
GROUP BY CUBE(branch)
