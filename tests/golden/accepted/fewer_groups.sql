SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32, max_groups_contributed = 2, max_rows_per_group = 8)
  key, COUNT(*) AS edits, COUNT(DISTINCT user_id) AS editors
FROM wiki
GROUP BY window(ts, '1 day'), key
