SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32)
  url, STDDEV(seconds) AS spread, ANON_VAR_POP(seconds) AS variance
FROM visits
GROUP BY window(ts, '1 day'), url
