SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-9, privacy_unit_column = owner_id, max_rows_contributed = 4, trigger_interval = '1 hour',
           group_selection_strategy = PUBLIC_GROUPS, public_groups = (SELECT page FROM pages))
  branch, COUNT(*) AS accounts
FROM accounts
GROUP BY branch
