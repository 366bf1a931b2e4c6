"""Five aggregates side by side in one windowed query with unknown keys, on real streams: how many 95% intervals hold the bounded truth.

    python benchmarks/side_by_side.py DATA [NOISE_KEYS]      DATA: a folder with `online-retail` and `wikiticker`

COUNT(*), SUM, AVG, STDDEV and APPROX_QUANTILES(4) of `value`; the shown cells of every window's last trigger, over so many noise keys (200), pooled and of
keys with fewer than 100 rows apart. A quantile is inside where its rank is within 1.96 of the printed rank error, or its leaf reaches there.
Beside the tree two flat histograms of the same leaves for its share of the budget: released once as it is, and a counter at all triggers. Mean rank
error of the three quartiles over the cells where none of the three is NULL.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

CHECKOUT = Path(__file__).resolve().parents[1]
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

import dpsql  # noqa: E402
from benchmarks.papers.quantiles import flat, rank_error  # noqa: E402
from dpsql.local.record_reader import RowReader  # noqa: E402
from dpsql.sources.config import Sources  # noqa: E402
from dpsql.udfs.measure import quantiles  # noqa: E402
from dpsql.udfs.noise.counters import column_norm, counter, path_sd  # noqa: E402
from dpsql.udfs.stage import Clock, Tick  # noqa: E402
from tests.matrix.same_rows import SECRET, Stream  # noqa: E402

STREAMS = {"online-retail": ("30 days", "1 day", 10.0), "wikiticker": ("1 day", "1 hour", 1000.0)}
QUERY = """SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 8,
  max_rows_per_group = 1, trigger_interval = '{trigger}') key, COUNT(*) AS n, SUM(value, contribution_bounds_per_row => (0, {upper})) AS total,
  AVG(value, contribution_bounds_per_row => (0, {upper})) AS mean, STDDEV_POP(value, contribution_bounds_per_row => (0, {upper})) AS spread,
  APPROX_QUANTILES(value, 4, contribution_bounds_per_row => (0, {upper})) AS quartiles FROM records GROUP BY window(ts, '{window}'), key"""
FEW = 100


def shown(name: str, path: Path, keys: int) -> pd.DataFrame:
    """One row per shown cell of a last trigger and noise key: of each aggregate whether its interval holds the truth; NaN where it is NULL."""
    window, trigger, upper = STREAMS[name]
    records = pq.read_table(path / name / "events.parquet")
    stream = Stream(name, records.filter(pa.compute.is_valid(records["user_id"])), window, trigger)
    with tempfile.TemporaryDirectory() as folder:
        source = stream.source("records", Path(folder), max_users=10**6, max_keys=10**6)
        query = dpsql.compile(
            QUERY.format(window=window, trigger=trigger, upper=upper), Sources((source,))
        )
        reader = RowReader(query.plan, query.sources, SECRET.salt("5a" * 16), {})
        frame = reader.frame(stream.records)
    intake, release = query.mechanism.stages(query.plan, query.facts(None))
    given = intake.step(intake.empty(), frame.select(intake.takes.names), Clock(), b"").rows
    (tree,) = release.parameters.quantiles
    once = tree.sigma / quantiles.LEVELS**0.5
    chance = np.random.default_rng(1)
    counting = counter("BLT", query.plan.horizon)
    deviations = {
        "tree": 0.0,
        "once": once,
        "at triggers": once * column_norm(counting) * path_sd(counting)[-1],
    }
    truth = bounded(given, release.parameters)
    leaves = given.filter(pa.compute.greater(given["leaf"], 0)).to_pandas()
    counts = {
        group: np.bincount(
            part["leaf"] - 1, part[f"v{len(release.parameters.perturbations)}"], quantiles.LEAVES
        ).astype(np.int64)
        for group, part in leaves.groupby(["window", "key_bytes"])
    }
    given = given.append_column("batch", pa.array(np.zeros(given.num_rows, np.int64)))
    out = []
    for number in range(keys):
        rows = release.step(
            release.empty(), given, [Tick(0, stream.until_us)], number.to_bytes(32, "big")
        ).rows.to_pandas()
        rows = rows[rows["trigger"] == query.plan.horizon].join(truth, on=["window", "key_bytes"])
        for i, alias in enumerate(("n", "total", "mean", "spread")):
            off = (rows[f"c{i}"] - rows[alias]).abs() / rows[f"s{i}"]
            rows[f"in_{alias}"] = np.where(rows[f"s{i}"].notna(), off <= 1.96, np.nan)
        exact = np.array(
            [
                counts.get(group, np.zeros(quantiles.LEAVES, np.int64))
                for group in zip(rows["window"], rows["key_bytes"], strict=True)
            ]
        )
        told = rows["s4"].notna().to_numpy() & exact.any(axis=1)
        place = np.rint(
            np.nan_to_num(rows[["c4_1", "c4_2", "c4_3"]].to_numpy(), nan=upper)
            / upper
            * quantiles.LEAVES
        ).astype(np.int64)
        for kind, deviation in deviations.items():
            at, there = flat(exact, deviation, 4, chance) if deviation else (place, told)
            off = np.array([rank_error(*cell) for cell in zip(exact, at, strict=True)])
            rows[f"off_{kind}"] = np.where(told & there, off.mean(axis=1), np.nan)
            if not deviation:
                rows["in_quartiles"] = np.where(
                    told, (off <= 1.96 * rows[["s4"]].to_numpy()).mean(axis=1), np.nan
                )
        out.append(rows)
    return pd.concat(out)


def bounded(given: pa.Table, parameters: object) -> pd.DataFrame:
    """What the aggregates of the admitted records are, per window and key."""
    plain = (
        given.filter(pa.compute.equal(given["leaf"], 0))
        .to_pandas()
        .groupby(["window", "key_bytes"])
        .sum(numeric_only=True)
    )
    sums = [plain[f"v{j}"] * p.grid for j, p in enumerate(parameters.perturbations)]  # type: ignore[attr-defined]
    n, total, centred, count, of_spread, squares, many = sums
    _, _, mean, spread, _ = parameters.columns  # type: ignore[attr-defined]
    variance = squares / many + spread.offset - (of_spread / many) ** 2
    return pd.DataFrame(
        {
            "n": n,
            "total": total,
            "mean": mean.centre + centred / count,
            "spread": np.sqrt(variance.clip(lower=0)),
        }
    )


def main() -> None:
    """Print a line per stream and aggregate."""
    path = Path(sys.argv[1])
    keys = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    for name in STREAMS:
        rows = shown(name, path, keys)
        for alias in ("n", "total", "mean", "spread", "quartiles"):
            of = rows[f"in_{alias}"]
            few = rows["n"] < FEW
            print(
                f"{name} {alias}: {of.mean():.1%} of {of.notna().sum():,} cells, {of[few].mean():.1%} of small keys'; NULL {of.isna().mean():.1%}"
            )
        off = rows[[column for column in rows if column.startswith("off_")]]
        for what, which in {"all": rows["n"] > 0, f"at least {FEW} rows": rows["n"] >= FEW}.items():
            errors = (
                f"{column[4:]} {off[which].dropna()[column].mean():.3f} (NULL {off[which][column].isna().mean():.0%})"
                for column in off
            )
            print(f"{name} rank error, {what} ({which.sum():,} cells):", ", ".join(errors))


if __name__ == "__main__":
    main()
