SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 16, min_privacy_units_per_group = 5, selection_weight_decay = 0.5, group_selection_share = 0.5, release = RESELECT)
  APPROX_TOP_COUNT(url, 50) AS top
FROM visits
GROUP BY window(ts, '1 day')
