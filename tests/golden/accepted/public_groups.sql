SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32, group_selection_strategy = PUBLIC_GROUPS, public_groups = (SELECT Page FROM pages WHERE topic = 'News'))
  page, COUNT(*) AS views
FROM (SELECT *, lower(url) AS page FROM visits)
GROUP BY window(ts, '1 day'), page
