-- The demo: editors per channel (a wiki) of one day, released every hour. You don't list the channels in advance: a channel is released
-- once enough editors worked on it. Hardly anybody edits more than two channels, so G = 2 leaves out few editors and keeps the noise small.
-- Counts of edits lose far more, because a few robots make four edits in ten: see wiki_edits.sql.
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-9, privacy_unit_column = user_id,
           max_groups_contributed = 2, trigger_interval = INTERVAL 1 HOUR)
  key AS channel, COUNT(DISTINCT user_id) AS editors
FROM wiki
GROUP BY window(ts, '1 day'), channel;
