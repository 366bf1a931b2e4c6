"""The two stages against the dense release of exact sums: the same bits, for every cell of every table at every trigger."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpsql.errors import ConfigError
from dpsql.local.feeder import Feeder
from dpsql.mechanisms.marginals.plan import MarginalsPlan
from dpsql.mechanisms.marginals.planner import make_plan
from dpsql.mechanisms.marginals.stages import domains, intake, release
from dpsql.sources.domains import Domain
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.keys import decode, encode
from dpsql.udfs.marginals.release import OUTSIDE
from dpsql.udfs.measure.output_columns import average, variance
from dpsql.udfs.stage import Clock
from tests.mechanisms.marginals.dense import nothing_seen, sums
from tests.mechanisms.marginals.dense import release as dense
from tests.mechanisms.marginals.plans import START, query, source
from tests.mechanisms.marginals.test_plan import MEAN, SPREAD
from tests.property.plans import COUNT, HOUR, SUM

NOISE_KEY = bytes(range(32))
DOMAINS = (
    Domain(("/a", "/b", "other"), False, other=True),
    Domain(("7", "8", "9", "10"), True, whole=True),
)
VALUES: tuple[list[bytes | None], ...] = (
    [b"/a", b"/b", b"/x", None, b"other"],
    [b"7", b"8", b"9", b"10", b"11", None],
)
PLACES = ([0, 1, 2, 2, 2], [0, 1, 2, 3, -1, -1])
LAST = 5


def plan(**changes: Any) -> MarginalsPlan:
    given = {"domains": DOMAINS, "max_triggers": LAST, "aggregates": (COUNT, SUM)} | changes
    return make_plan(query(**given), source())


def rows(size: int, units: int = 1 << 40) -> tuple[pa.Table, np.ndarray]:
    """Records of many units, and the places of their values."""
    pick = np.random.default_rng(5)
    at = np.column_stack([pick.integers(0, len(values), size) for values in VALUES])
    names = [encode([VALUES[0][one], VALUES[1][other]]) for one, other in at.tolist()]
    columns = {
        "drop": np.zeros(size, np.int8),
        "user": pick.integers(0, units, size),
        "ts": START + np.sort(pick.integers(0, LAST * HOUR, size)),
        "key": np.array([hash(name) for name in names], np.int64),
        "key_bytes": pa.array(names, pa.binary()),
        "a0": pick.uniform(-5, 70, size),
    }
    return pa.table(columns), np.column_stack(
        [np.array(places)[at[:, key]] for key, places in enumerate(PLACES)]
    )


def fed(
    asked: MarginalsPlan, records: pa.Table, buckets: tuple[int, int] = (2, 3)
) -> tuple[pa.Table, dict[str, int]]:
    feeder = Feeder((intake(asked), release(asked)), NOISE_KEY, buckets=buckets)
    feeder.micro_batch(records, Clock(NO_CLOCK, 1 << 62))
    return pa.concat_tables(feeder.tick(START + LAST * HOUR)).sort_by(
        [("trigger", "ascending"), ("key_bytes", "ascending")]
    ), dict(feeder.drops)


@pytest.mark.parametrize(("last", "size"), [(LAST, 400), (None, 400), (None, 3)])
def test_rows_are_the_exact_sums_and_noise_of_every_cell(last: int | None, size: int) -> None:
    """Of 3 records most cells have none."""
    asked = plan(max_triggers=last)
    records, places = rows(size)
    found, drops = fed(asked, records)
    inside = (places >= 0).all(axis=1)
    assert drops == {OUTSIDE: int((~inside).sum())} and 0 < inside.sum() < len(inside)
    trigger = (records["ts"].to_numpy() - START) // HOUR + 1
    names = domains(asked).names(asked.marginals, np.arange(asked.marginals.first[-1]))
    place = {name: cell for cell, name in enumerate(names.to_pylist())}
    assert len(place) == asked.marginals.first[-1] and found.num_rows == LAST * len(place)
    cells = np.array([place[name] for name in found["key_bytes"].to_pylist()])
    for i, each in enumerate(asked.sums):
        noise = asked.noisy_tables(each)
        state = nothing_seen(asked.noisy_tables(each))
        amounts = intake(asked).parameters.increments[i].increments(records)
        for now in range(1, LAST + 1):
            mine = inside & (trigger == now)
            state, expected = dense(
                state, sums(asked.marginals, places[mine], amounts[mine]), noise, NOISE_KEY
            )
            shown = found["trigger"].to_numpy() == now
            released = found[f"c{i}"].to_numpy()[shown] / (each.grid if each.rule == "sum" else 1)
            assert np.array_equal(released, expected[cells[shown]])
            stderr = np.sqrt(noise.variances(now))[
                np.searchsorted(asked.marginals.first, cells[shown], side="right") - 1
            ]
            assert np.array_equal(found[f"s{i}"].to_numpy()[shown], stderr)


def test_quotients_are_of_noisy_sums() -> None:
    """Of each cell alone, from the dense release of the sums, with the standard errors that they have in its own table."""
    asked = plan(aggregates=(COUNT, MEAN, SPREAD), epsilon=20.0)
    records, places = rows(150)
    found, _ = fed(asked, records)
    inside = (places >= 0).all(axis=1)
    last = found["trigger"].to_numpy() == LAST
    names = domains(asked).names(asked.marginals, np.arange(asked.marginals.first[-1])).to_pylist()
    cells = np.array(
        [names.index(name) for name in found["key_bytes"].filter(pa.array(last)).to_pylist()]
    )
    table = np.searchsorted(asked.marginals.first, cells, side="right") - 1
    trigger = (records["ts"].to_numpy() - START) // HOUR + 1
    sums_of = []
    errors = []
    for i, each in enumerate(asked.sums):
        noise = asked.noisy_tables(each)
        state = nothing_seen(asked.noisy_tables(each))
        amounts = intake(asked).parameters.increments[i].increments(records)
        for now in range(1, LAST + 1):
            mine = inside & (trigger == now)
            state, noisy = dense(
                state, sums(asked.marginals, places[mine], amounts[mine]), noise, NOISE_KEY
            )
        sums_of.append(noisy[cells] * each.grid)
        errors.append(np.sqrt(noise.variances(LAST))[table])
    noisy = list(zip(sums_of, errors, strict=True))
    mean = average(noisy[1], noisy[2], (-30, 30))
    spread = variance(*noisy[3:], 450, 900, True, True)
    np.testing.assert_allclose(found["c1"].to_numpy()[last], 30 + mean[0], rtol=1e-9)
    np.testing.assert_allclose(found["s1"].to_numpy()[last], mean[1], rtol=1e-9)
    np.testing.assert_allclose(found["c2"].to_numpy()[last], spread[0], rtol=1e-9)


def test_a_row_says_which_keys_it_has() -> None:
    """NULL stands for a key that a table does not have, and grouping_id is that of SQL."""
    found, _ = fed(plan(grouping_sets=((0, 1), (0,), (1,), ())), rows(50)[0])
    urls, hours = decode(found["key_bytes"].combine_chunks(), 2)
    expected = [
        2 * (url is None) + (hour is None)
        for url, hour in zip(urls.to_pylist(), hours.to_pylist(), strict=True)
    ]
    assert found["grouping_id"].to_pylist() == expected and len({*expected}) > 1


def test_what_a_unit_does_moves_each_table_by_as_much_as_is_accounted_for() -> None:
    """The exact steps, with and without one unit of many rows: C rows in each table, however many came. A bound of one table's rows for all
    tables would be seen here."""
    asked = plan(max_rows_contributed=3, aggregates=(COUNT,))
    records, _ = rows(300, units=40)
    user = records["user"].to_numpy()
    busy = int(np.argmax(np.bincount(user)))
    with_, without = (
        fed(asked, each)[0] for each in (records, records.filter(pa.array(user != busy)))
    )
    moved = with_["c0"].to_numpy() - without["c0"].to_numpy()
    last = with_["trigger"].to_numpy() == LAST
    ids = with_["grouping_id"].to_numpy()
    assert [
        int(np.abs(moved[last & (ids == table.grouping_id)]).sum()) for table in asked.tables
    ] == [3] * len(asked.tables)
    assert np.sum(user == busy) > 3


def test_bounds_of_rows_are_per_cell_of_all_keys() -> None:
    """Each unit twice in two cells. Catches: numbers of cells as hashes, whose upper bits are all 0, so that one row of a unit would count."""
    cells = np.tile([0, 0, 1, 1], 20)
    size = 80
    records, _ = rows(size)
    names = [encode([b"/a", b"7"]), encode([b"/b", b"7"])]
    for name, values in (
        ("user", np.repeat(np.arange(20), 4)),
        ("key_bytes", pa.array([names[cell] for cell in cells], pa.binary())),
    ):
        records = records.set_column(records.column_names.index(name), name, pa.array(values))
    for bounds, counted in (
        ((4, 1, 4), {"over_max_rows_per_group": 40}),
        ((4, 4, 1), {"over_max_groups": 40}),
        ((4, 2, 2), {}),
    ):
        given = dict(
            zip(
                ("max_rows_contributed", "max_rows_per_group", "max_groups_contributed"),
                bounds,
                strict=True,
            )
        )
        assert fed(plan(aggregates=(COUNT,), **given), records)[1] == counted


def test_keys_whose_hashes_collide_are_in_cells_of_their_own() -> None:
    """Records are summed by the places of their values: a collision that one unit's key brings must not move what others brought."""
    asked = plan()
    records, _ = rows(400)
    same = records.set_column(
        records.column_names.index("key"), "key", pa.array(np.full(400, 7, np.int64))
    )
    assert fed(asked, records)[0].equals(fed(asked, same)[0])


def test_too_many_combinations_for_a_number_are_refused() -> None:
    wide = tuple(Domain(tuple(str(i) for i in range(4_000)), True, whole=True) for _ in range(6))
    with pytest.raises(ConfigError, match="combinations"):
        plan(domains=wide, grouping_sets=tuple((key,) for key in range(6)))
