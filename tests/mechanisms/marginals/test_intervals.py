"""Averages and deviations of cells of a real stream: how often their 95% intervals hold the bounded truth, over many noise keys."""

import numpy as np
import pyarrow as pa

import dpsql
from dpsql.local.record_reader import RowReader
from dpsql.mechanisms.marginals.stages import intake, release
from dpsql.sources.config import Sources
from dpsql.sources.domains import Domain
from dpsql.text import Z95
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.measure.output_columns import combine
from dpsql.udfs.stage import Clock, Tick
from tests.matrix.same_rows import RUN_ID, SECRET, Stream, wiki

NOISE_KEYS = 60
TEXT = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = {epsilon}, delta = 9e-6, privacy_unit_column = user_id, max_rows_contributed = 8, "
    "trigger_interval = '100 days', max_triggers = 1) key, hour, AVG(value, contribution_bounds_per_row => (0, {high})) AS mean, "
    "STDDEV(value, contribution_bounds_per_row => (0, {high})) AS deviation "
    "FROM (SELECT user_id, ts, key, value, hour(ts) AS hour FROM records) GROUP BY CUBE(key, hour)"
)


def inside(stream: Stream, epsilon: float, high: float, keys: int) -> dict[str, tuple[float, int]]:
    """Of each column the share of intervals that hold the truth, and how many cells are shown."""
    names, counts = np.unique(
        stream.records["key"].drop_null().to_numpy(zero_copy_only=False).astype(str),
        return_counts=True,
    )
    known = sorted(names[np.argsort(-counts)[:keys]].tolist())
    domains = (
        ("key", Domain((*known, "other"), False, other=True)),
        ("hour", Domain(tuple(map(str, range(24))), True, whole=True)),
    )
    query = dpsql.compile(
        TEXT.format(epsilon=epsilon, high=high),
        Sources((stream.source("records", "nowhere", domains=domains, max_users=10**6),)),
    )
    stages = intake(query.plan), release(query.plan)
    records = RowReader(query.plan, query.sources, SECRET.salt(RUN_ID), {}).frame(stream.records)
    given = stages[0].step(stages[0].empty(), records, Clock(NO_CLOCK, 1 << 62), bytes(32)).rows
    exact = np.zeros((len(query.plan.sums), query.plan.marginals.first[-1]), np.int64)
    for i, total in enumerate(exact):
        np.add.at(total, given["key"].to_numpy(), given[f"v{i}"].to_numpy())
    names_of = stages[1].parameters.public.names(np.arange(exact.shape[1])).to_pylist()
    rows = given.append_column("batch", pa.array(np.zeros(given.num_rows, np.int64)))
    held: dict[str, list[np.ndarray]] = {"mean": [], "deviation": []}
    for number in range(NOISE_KEYS):
        done = (
            stages[1]
            .step(stages[1].empty(), rows, [Tick(0, 1 << 60)], number.to_bytes(32, "big"))
            .rows
        )
        place = np.array([names_of.index(name) for name in done["key_bytes"].to_pylist()])
        for i, (column, found) in enumerate(
            zip(stages[1].parameters.columns, held.values(), strict=True)
        ):
            truth, _ = combine(
                column, list(exact[:, place]), [np.zeros(len(place))] * len(column.perturbations)
            )
            value = done[f"c{i}"].to_numpy()
            error = Z95 * done[f"s{i}"].to_numpy()
            has_truth = exact[column.perturbations[-1], place] > column.sample
            says_something = error < 0.999 * np.nanmax(error)  # others have half of the bounds
            found.append((np.abs(value - truth) <= error)[has_truth & says_something])
    return {
        name: (float(np.mean(np.concatenate(each))), sum(map(len, each)))
        for name, each in held.items()
    }


def test_intervals_of_cells_hold_the_truth() -> None:
    """Of all that say something and have enough rows for an exact value; most of a day of Wikipedia edits' cells have few."""
    found = inside(wiki(), 6, 500, 40)
    assert all(0.94 < share < 0.98 and many > 1000 for share, many in found.values()), found
