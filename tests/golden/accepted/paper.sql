SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32, counter = HONAKER, release = RESELECT, selection_weight_decay = 0, group_selection_share = 0.5)
  key, COUNT(*) AS edits
FROM wiki
GROUP BY window(ts, '1 day'), key
