SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32)
  date_format(from_utc_timestamp(ts, 'Europe/Berlin'), 'yyyy-MM-dd HH') AS local_hour, to_date(referrer, 'dd.MM.yyyy') AS day, COUNT(*) AS views
FROM visits
GROUP BY window(ts, '1 day'), local_hour, day
