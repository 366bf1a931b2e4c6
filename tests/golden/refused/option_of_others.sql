SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32, contribution_bounds_per_row = 1, max_partitions_contributed = 1, max_contributions_per_partition = 1, max_contributions = 1, privacy_unit = 1, privacy_id = 1, anonymization_userid_column = 1, threshold = 1, k_threshold = 1, watermark = 1, contribution_bounding_strategy = 1)
  url, COUNT(*) AS views
FROM visits
GROUP BY window(ts, '1 day'), url
