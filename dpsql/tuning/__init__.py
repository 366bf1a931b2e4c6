"""The choice of a query's contribution limits and bounds, on data that one may look at.

Nothing here is private, and nothing is released: what is chosen on private records tells about them, and no epsilon covers that.

    tune(query, frame) -> Tuned                      all of this for a frame, in Python
    read_sample(query, inputs) -> Sample             the records that FROM makes of the sample
    Workbench(query, sample).measure(setting)        -> Measured: expected errors of one setting
    search(bench)                                    -> the setting with the least error
    edit_options(text, changes)  (dpsql.sql.parse) -> the query with other options and everything else as written
"""

from dpsql.tuning.frames import Tuned, tune
from dpsql.tuning.sample import Sample, read_sample
from dpsql.tuning.search import around, edited, search
from dpsql.tuning.workbench import Measured, Setting, Workbench, check_tunable

__all__ = [
    "Measured",
    "Sample",
    "Setting",
    "Tuned",
    "Workbench",
    "around",
    "check_tunable",
    "edited",
    "read_sample",
    "search",
    "tune",
]
