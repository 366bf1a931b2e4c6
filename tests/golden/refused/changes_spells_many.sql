SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = owner_id, max_rows_contributed = 8, trigger_interval = '1 hour', max_spells_contributed = 2000000)
  branch, COUNT(DISTINCT owner_id) AS n FROM accounts GROUP BY branch
