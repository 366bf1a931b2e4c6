SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32)
  url || '#' || CAST(status + 1 AS STRING) AS label, extract(HOUR FROM ts) AS hour_of_day, COUNT(*) AS views, SUM(-seconds * 2 / 3 - (status % 7), contribution_bounds_per_row => (-100, 100)) AS total
FROM visits
WHERE ts BETWEEN TIMESTAMP '2026-01-01' AND TIMESTAMP '2027-01-01 00:00:00' AND ts >= DATE '2026-01-02' AND (status & 255) <> ~1
  AND (status | 1) <= 599 AND (status ^ 1) != 0 AND NOT (url <=> referrer) AND url IS DISTINCT FROM referrer AND url ILIKE '/A%'
  AND tags IS NOT NULL AND hex(url) <> X'1f' AND TRUE AND seconds::int > 1.5 AND status < 9L
GROUP BY window(ts, '1 day'), label, hour_of_day
