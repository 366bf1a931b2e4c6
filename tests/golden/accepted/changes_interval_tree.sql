SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = owner_id, max_rows_contributed = 4, trigger_interval = '1 hour',
           group_selection_strategy = PUBLIC_GROUPS, public_groups = (SELECT page FROM pages), release = INTERVAL_TREE)
  branch, COUNT(*) AS accounts, SUM(balance, contribution_bounds_per_row => (0, 10000)) AS deposits
FROM accounts
GROUP BY branch
