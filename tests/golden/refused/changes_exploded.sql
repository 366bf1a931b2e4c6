SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = owner_id, max_rows_contributed = 8, trigger_interval = '1 hour')
  tag, COUNT(*) AS n FROM accounts LATERAL VIEW explode(tags) t AS tag GROUP BY tag
