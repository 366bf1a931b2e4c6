SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32, contribution_period = 'stream', trigger_interval = '12 hours')
  key, COUNT(*) AS edits
FROM wiki
GROUP BY window(ts, '1 day'), key
