-- Edits and their mean size in twelve languages. The list is public, so no key has to earn its place and no budget is spent on finding
-- keys: every listed channel is released in every window, records or not. The join is with the same public table.
-- Windows are released up to --until: dpsql try conf/queries/wiki_languages.sql --until 2015-09-13
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (
    epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 4, max_groups_contributed = 2,
    public_groups = (SELECT language FROM channels), trigger_interval = INTERVAL 1 HOUR
  )
  c.language,
  COUNT(*) AS edits,
  AVG(w.value, contribution_bounds_per_row => (0, 250)) AS mean_size
FROM wiki AS w JOIN channels AS c ON w.key = c.channel
GROUP BY window(w.ts, '6 hours'), c.language;
