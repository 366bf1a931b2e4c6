/* the same question as `smallest`, spelled in every other way */
select with differential_privacy options(
  EPSILON = 1.0, Delta = 1E-9, privacy_unit_column = (USER_ID), max_rows_contributed = 1, Counter = 'blt', release = every_trigger,
  trigger_interval = interval '24' hour -- one release per window
)
  `KEY`, count(*) edits
from Wiki group by Window((ts), interval 24 hours, '1 DAY', '0 seconds'), (key)
;
-- done
