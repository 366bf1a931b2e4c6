SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32)
  from_json(url, 'a STRUCT<b: ARRAY<STRUCT<c: STRING>>>').a.b[0].c AS part, COUNT(*) AS views
FROM visits
GROUP BY window(ts, '1 day'), part
