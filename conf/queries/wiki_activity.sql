-- Edits and editors of the whole project in the last six hours, every hour: sliding windows, and no key.
-- Try: dpsql try conf/queries/wiki_activity.sql --until 2015-09-13
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 4)
  COUNT(*) AS edits,
  COUNT(DISTINCT user_id) AS editors
FROM wiki
GROUP BY window(ts, '6 hours', '1 hour');
