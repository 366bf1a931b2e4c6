SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = owner_id, max_rows_contributed = 8, trigger_interval = '1 hour')
  topic, COUNT(*) AS n FROM accounts JOIN pages ON branch = page GROUP BY topic
