SELECT WITH DIFFERENTIAL_PRIVACY
	OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 1)
	key,	COUNT(*) AS edits
FROM wiki
GROUP BY window(ts, '1 day'), key
