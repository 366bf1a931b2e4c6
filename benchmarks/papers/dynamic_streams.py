"""Tables whose rows end, made of two real streams, through both steps of a plan; epsilon = 6, delta = 1e-9.

    python benchmarks/papers/dynamic_streams.py DATA       DATA: a folder with `nasa-http-day`, `wikiticker`, `online-retail` (docs/accuracy.md)

nasa-http-day: hosts that are present, that is, have asked for something in the last 10 minutes, one trigger a minute; error of COUNT(DISTINCT unit) for
each max_spells_contributed. wikiticker: an edit is a row for 4 hours, 16 triggers; wikis that are selected and shown at the last trigger.
The contribution period is the whole stream, C = 4 on wikiticker: who has begun four rows in that day begins none that counts. online-retail: a line of
an invoice is a row for 30 days; C = 8 for ever, and in 30 days; exact numbers of what counts at the last trigger, a year after the first.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

CHECKOUT = Path(__file__).resolve().parents[2]
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

from dpsql.mechanisms.dynamic.plan import TablePlan  # noqa: E402
from dpsql.mechanisms.dynamic.planner import make_plan  # noqa: E402
from dpsql.mechanisms.dynamic.stages import stages  # noqa: E402
from dpsql.udfs.columns import Int, mix, sort_order  # noqa: E402
from dpsql.udfs.intake.versions import UNCOUNTED  # noqa: E402
from dpsql.udfs.keys import PublicGroups  # noqa: E402
from dpsql.udfs.stage import BEGIN, END, Clock, Tick  # noqa: E402
from tests.mechanisms.dynamic import plans  # noqa: E402
from tests.property.plans import COUNT, USERS  # noqa: E402

MINUTE = 60_000_000
RUNS = 5
SPELLS = (1, 2, 4, 8, 16, 32)


def read(path: Path) -> tuple[Int, Int, list[str], Int]:
    """Units, keys, names of keys, event times."""
    table = pq.read_table(path / "events.parquet")
    unit = np.unique(np.asarray(table["user_id"].to_pylist()), return_inverse=True)[1]
    names, key = np.unique(
        np.asarray([str(name) for name in table["key"].to_pylist()]), return_inverse=True
    )
    return (
        unit,
        key,
        names.tolist(),
        table["ts"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy(),
    )


def images(unit: Int, key: Int | None, key_bytes: pa.BinaryArray, begin: Int, end: Int) -> pa.Table:
    """Images of rows, one from `begin` to `end` each."""
    size = len(unit)
    ids = np.zeros(size, np.int64) if key is None else mix(key).view(np.int64)
    return pa.table(
        {
            "drop": np.zeros(2 * size, np.int8),
            "user": np.tile(mix(unit).view(np.int64), 2),
            "row": np.tile(np.arange(size), 2),
            "seq": np.repeat([0, 1], size),
            "ts": np.concatenate([begin, end]),
            "key": np.tile(ids, 2),
            "kind": np.repeat(np.array([BEGIN, END], np.int8), size),
            "key_bytes": pa.concat_arrays([key_bytes, key_bytes]),
        }
    )


def released(
    plan: TablePlan, unit: Int, key: Int, names: list[str], begin: Int, end: Int, last: int
) -> list[pa.Table]:
    """Rows of all triggers, for several noise keys: row i of the table is there from `begin` to `end`."""
    nobody = PublicGroups((0,), (b"",), plan.start_us) if plan.selection is None else None
    intake, release = stages(plan, nobody)
    until = plan.start_us + last * plan.query.trigger_interval_us
    encoded = pa.array(
        [name.encode() for name in names] if plan.selection else [b""] * len(names), pa.binary()
    ).take(pa.array(key))
    feed = images(unit, key if plan.selection else None, encoded, begin, end)
    feed = feed.select(intake.takes.names)
    added = intake.step(intake.empty(), feed, Clock(plan.start_us, int(begin.max())), b"").rows
    added = added.append_column("batch", pa.array(np.zeros(added.num_rows, np.int64)))
    keys = [number.to_bytes(32, "big") for number in range(1, RUNS + 1)]
    return [release.step(release.empty(), added, [Tick(0, until)], each).rows for each in keys]


def there(begin: Int, end: Int, start: int, interval: int, last: int) -> Int:
    """How many of these are there at triggers 1 .. last."""
    change = np.zeros(last + 2, np.int64)
    for times, sign in ((begin, 1), (end, -1)):
        np.add.at(change, np.minimum((times - start) // interval + 1, last + 1), sign)
    return np.cumsum(change)[1 : last + 1]


def retail(data: Path) -> None:
    """Rows and customers that count at the last trigger, without noise, for ever and by periods."""
    unit, key, _, ts = read(data / "online-retail")
    interval = 60 * MINUTE
    start = int(ts.min()) // interval * interval
    until = start + (int((ts.max() - start) // interval) + 1) * interval
    life = 30 * 24 * interval
    for period_us in (None, life):
        query = plans.query(
            feed=plans.FEED,
            aggregates=(COUNT,),
            trigger_interval_us=interval,
            max_rows_contributed=8,
            period_us=period_us,
        )
        intake, _ = stages(make_plan(query, plans.source(start_us=start)))
        feed = images(unit, key, pa.array([b""] * len(unit), pa.binary()), ts, ts + life)
        feed = feed.filter(pa.array(feed["ts"].to_numpy() < until)).select(intake.takes.names)
        live = intake.step(intake.empty(), feed, Clock(start, until), b"").state["live"]
        user = live["user"].to_numpy()
        is_counted = live["slot"].to_numpy() != UNCOUNTED
        span = "in 30 days" if period_us else "for ever"
        print(
            f"online-retail, C = 8 {span}: {is_counted.sum():,} of {len(user):,} live rows count, "
            f"of {len(np.unique(user[is_counted])):,} of {len(np.unique(user)):,} customers"
        )


def presences(unit: Int, ts: Int, gap: int) -> tuple[Int, Int, Int]:
    """(unit, begin, end): from its first request until `gap` after the last one before a pause of that length and a minute."""
    order = sort_order(unit, ts)
    unit = unit[order]
    ts = ts[order]
    first = np.flatnonzero(
        np.concatenate([[True], (unit[1:] != unit[:-1]) | (np.diff(ts) > gap + MINUTE)])
    )
    last = np.append(first[1:], len(ts)) - 1
    return unit[first], ts[first], ts[last] + gap


def nasa(data: Path) -> None:
    """Error of the number of hosts by S."""
    unit, _, _, ts = read(data / "nasa-http-day")
    start = int(ts.min()) // MINUTE * MINUTE
    last = int((ts.max() - start) // MINUTE) + 1
    unit, begin, end = presences(unit, ts, 10 * MINUTE)
    true = there(begin, end, start, MINUTE, last)
    print(f"nasa-http-day: {last} triggers, {true.mean():.0f} hosts present on average")
    for spells in SPELLS:
        bounds = {"max_rows_contributed": 64, "max_spells_contributed": spells}
        query = plans.query(
            feed=plans.FEED, keys=(), aggregates=(USERS,), trigger_interval_us=MINUTE, **bounds
        )
        runs = released(
            make_plan(query, plans.source(start_us=start)), unit, 0 * unit, [""], begin, end, last
        )
        error = np.mean([np.abs(run["c0"].to_numpy() - true).mean() for run in runs])
        print(
            f"  S = {spells:>2}: mean absolute error {error:5.1f}, stderr at the end {runs[0]['s0'][-1].as_py():.1f}"
        )


def wikis(data: Path) -> None:
    """Keys at the last trigger."""
    unit, key, names, ts = read(data / "wikiticker")
    interval = 15 * MINUTE
    start = int(ts.min()) // interval * interval
    kept = 16 * interval
    last = int((ts.max() - start) // interval) + 1
    query = plans.query(
        feed=plans.FEED, aggregates=(COUNT,), trigger_interval_us=interval, max_rows_contributed=4
    )
    runs = released(
        make_plan(query, plans.source(start_us=start)), unit, key, names, ts, ts + kept, last
    )
    of_key = [
        there(ts[key == k], ts[key == k] + kept, start, interval, last)[-1]
        for k in range(len(names))
    ]
    found = []
    for run in runs:
        shown = run.filter(pa.array(run["trigger"].to_numpy() == last))["key_bytes"].to_pylist()
        empty = sum(of_key[names.index(name.decode())] == 0 for name in shown)
        found.append((len(set(run["key_bytes"].to_pylist())), len(shown), empty))
    ever, shown, empty = np.mean(found, axis=0)
    print(
        f"wikiticker: {last} triggers; at the last {ever:.1f} wikis have been shown, {shown:.1f} are, {empty:.1f} of them empty"
    )


if __name__ == "__main__":
    nasa(Path(sys.argv[1]))
    wikis(Path(sys.argv[1]))
    retail(Path(sys.argv[1]))
