"""Made-up tables of tests, with what real ones say of themselves."""

from collections.abc import Iterable

import pandas as pd
import pyarrow as pa
from deltalake import Schema

from dpsql.description import PROPERTY, Column, Measure, Published, Role, Rows, Sets, Windows
from dpsql.files import Place
from dpsql.lake import delta_tables
from dpsql.mechanisms import describe as mechanisms_describe
from dpsql.mechanisms import registry
from dpsql.mechanisms.protocol import Plan
from dpsql.parsed_query import AS_RELEASED, AggregateFunction

TIMES = ("window_start", "window_end", "trigger", "trigger_time")
DAY_US = 86_400_000_000


def described(names: Iterable[str]) -> Published:
    """By the names of its columns: a made-up table has no plan."""
    known = list(map(str, names))
    columns = list[Column]()
    for name in known:
        of, _, ending = name.rpartition("_")
        if name in TIMES:
            columns.append(Column(name, Role.TIME))
        elif name == "grouping_id":
            columns.append(Column(name, Role.SET))
        elif f"{name}_stderr" in known or f"{name}_rank_stderr" in known:
            columns.append(Column(name, Role.VALUE, name))
        elif name.endswith("_rank_stderr"):
            columns.append(Column(name, Role.RANK_STDERR, name.removesuffix("_rank_stderr")))
        elif of in known and ending in ("stderr", "smoothed", "measured"):
            columns.append(Column(name, Role.STDERR if ending == "stderr" else Role.BESIDE, of))
        else:
            columns.append(Column(name, Role.KEY))
    windows = Windows(DAY_US, DAY_US, 0, 0, 24) if "window_start" in known else None
    keys = tuple(column.name for column in columns if column.role is Role.KEY)
    sets = Sets(keys, (2,) * len(keys), (0,), ()) if "grouping_id" in known else None
    counted = (
        AggregateFunction.COUNT_ROWS if sets else AggregateFunction.COUNT_DISTINCT_UNIT
    )  # of cells there are no people
    measures = tuple(
        Measure(each.name, counted, bool(sets), None, None)
        for each in columns
        if each.role is Role.VALUE
    )
    rows = Rows.CUBE if sets else Rows.HISTOGRAM
    return Published(
        rows=rows,
        trigger_us=DAY_US,
        columns=tuple(columns),
        windows=windows,
        sets=sets,
        measures=measures,
    )


def of_plan(plan: Plan) -> Published:
    return mechanisms_describe.described(plan, registry.shape(plan), AS_RELEASED)


def told(frame: pd.DataFrame) -> pd.DataFrame:
    frame.attrs[PROPERTY] = described(frame.columns).text()
    return frame


def write(path: Place, rows: pd.DataFrame | pa.Table, published: Published) -> None:
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pandas(rows, preserve_index=False)
    in_us = [
        pa.field(
            each.name, pa.timestamp("us", "UTC") if pa.types.is_timestamp(each.type) else each.type
        )
        for each in table.schema
    ]
    table = table.cast(pa.schema(in_us))
    delta_tables.create(path, Schema.from_arrow(table.schema), properties=published.properties)
    delta_tables.append(path, table, {"made up": 1})
