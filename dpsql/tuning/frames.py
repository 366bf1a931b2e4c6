"""`dpsql.tune`: the settings that suit a sample in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpsql.compiled import Query
from dpsql.local.frames import MISTAKE, without_values
from dpsql.tuning.sample import frame_sample
from dpsql.tuning.search import INTERVAL, around, edited, search
from dpsql.tuning.workbench import Setting, Workbench, check_tunable

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Tuned:
    """The best setting for a sample, and those next to it.

    Args:
        sql: the query with the best options.
        settings: a row per setting: which `option` differs from the best one, its `value` (of `trigger_interval` the number of
            releases), the expected `error` as a share of the truth, how many `keys` are released, which share of the records is `kept`.
    """

    sql: str
    settings: pd.DataFrame


@without_values(MISTAKE)
def tune(
    query: Query,
    sample: Any,
    *,
    scale: float = 1.0,
    column: str | None = None,
    goal: str = "l_1",
    schema: str | None = None,
) -> Tuned:
    """Choose contribution limits on records that you may look at; nothing is released or spent.

    A choice on the private records tells about them, and no epsilon covers that. Take public records, last year's, or those of people who agreed.

    Args:
        query: from `dpsql.compile` or `Session.plan`.
        sample: a frame with the columns of the source.
        scale: units of the stream per unit of the sample.
        column: the alias whose error counts; all, equally, unless given.
        goal: `l_1` or `l_2`, the norm of the error; `keys`: how many are released.
        schema: types of columns of Python objects (default: those of the source).

    Raises:
        ConfigError: the settings of such a query cannot be measured.
        DataError: the sample does not fit the query.
    """
    import pandas as pd  # slow to import

    check_tunable(query)
    bench = Workbench(query, frame_sample(query, sample, schema), scale, column, goal)
    best = search(bench)
    rows = [
        *_rows(bench, "as written", [bench.written]),
        *_rows(bench, "best", [best]),
        *(
            row
            for option, settings in around(bench, best)
            for row in _rows(bench, option, settings)
        ),
    ]
    return Tuned(edited(bench, best), pd.DataFrame(rows))


def _rows(bench: Workbench, option: str, settings: Iterable[Setting]) -> Iterator[dict[str, Any]]:
    """Yield what each setting keeps and costs."""
    for setting in settings:
        measured = bench.measure(setting)
        value = measured.horizon if option == INTERVAL else getattr(setting, option, None)
        yield {
            "option": option.removesuffix("_us"),
            "value": value,
            "error": measured.cost,
            "keys": measured.keys_kept,
            "kept": measured.kept,
        }
