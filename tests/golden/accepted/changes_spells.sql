-- Copies of rows are told apart by nothing; a sub-query passes the feed on.
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = customer, max_rows_contributed = 16, max_spells_contributed = 4,
           trigger_interval = '1 day', max_triggers = 1000, min_privacy_units_per_group = 3, hide_below = 0.2)
  topic, COUNT(DISTINCT customer) AS customers, AVG(value, contribution_bounds_per_row => (-10, 50)) AS mean
FROM (SELECT customer, page, value, _change_type, _commit_version, _commit_timestamp FROM baskets WHERE value IS NOT NULL) AS b
JOIN pages USING (page)
GROUP BY topic
