SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 4, trigger_interval = '1 hour')
  length(url) + 0 AS k0, length(url) + 1 AS k1, length(url) + 2 AS k2, length(url) + 3 AS k3, length(url) + 4 AS k4, length(url) + 5 AS k5, length(url) + 6 AS k6, length(url) + 7 AS k7, length(url) + 8 AS k8, length(url) + 9 AS k9, length(url) + 10 AS k10, length(url) + 11 AS k11, length(url) + 12 AS k12, length(url) + 13 AS k13, length(url) + 14 AS k14, length(url) + 15 AS k15, length(url) + 16 AS k16, COUNT(*) AS views
FROM visits
GROUP BY CUBE(k0, k1, k2, k3, k4, k5, k6, k7, k8, k9, k10, k11, k12, k13, k14, k15, k16)
