"""Five aggregates side by side in one windowed query with unknown keys, on real streams: how many 95% intervals hold the bounded truth.

    python benchmarks/side_by_side.py DATA [NOISE_KEYS]      DATA: a folder with `online-retail` and `wikiticker`

COUNT(*), SUM, AVG, STDDEV and APPROX_QUANTILES(4) of `value`; the shown cells of every window's last trigger, over so many noise keys (200), pooled and of
keys with fewer than 100 rows apart. A quantile is inside where its rank is within 1.96 of the printed rank error, or its leaf reaches there.
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
if str(CHECKOUT) not in sys.path:  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

import dpsql  # noqa: E402
from dpsql.config import Sources  # noqa: E402
from dpsql.local.record_reader import RowReader  # noqa: E402
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
        query = dpsql.compile(QUERY.format(window=window, trigger=trigger, upper=upper), Sources((source,)))
        reader = RowReader(query.plan, query.sources, SECRET.salt("5a" * 16), {})
        frame = reader.frame(stream.records)
    intake, release = query.mechanism.stages(query.plan, query.facts(None))
    given = intake.step(intake.empty(), frame.select(intake.takes.names), Clock(), b"").rows
    truth, leaves = bounded(given, release.parameters), given.filter(pa.compute.greater(given["leaf"], 0)).to_pandas()
    counts = leaves.groupby(["window", "key_bytes", "leaf"])[f"v{len(release.parameters.perturbations)}"].sum()
    ranks = {
        group: (part.index.get_level_values("leaf").to_numpy(), part.to_numpy()) for group, part in counts.groupby(["window", "key_bytes"])
    }
    given, out = given.append_column("batch", pa.array(np.zeros(given.num_rows, np.int64))), []
    for number in range(keys):
        rows = release.step(release.empty(), given, [Tick(0, stream.until_us)], number.to_bytes(32, "big")).rows.to_pandas()
        rows = rows[rows["trigger"] == query.plan.horizon].join(truth, on=["window", "key_bytes"])
        for i, alias in enumerate(("n", "total", "mean", "spread")):
            off = (rows[f"c{i}"] - rows[alias]).abs() / rows[f"s{i}"]
            rows[f"in_{alias}"] = np.where(rows[f"s{i}"].notna(), off <= 1.96, np.nan)
        rows["in_quartiles"] = [inside(row, ranks.get((row.window, row.key_bytes)), upper) for row in rows.itertuples()]
        out.append(rows)
    return pd.concat(out)


def bounded(given: pa.Table, parameters: object) -> pd.DataFrame:
    """What the aggregates of the admitted records are, per window and key."""
    plain = given.filter(pa.compute.equal(given["leaf"], 0)).to_pandas().groupby(["window", "key_bytes"]).sum(numeric_only=True)
    sums = [plain[f"v{j}"] * p.grid for j, p in enumerate(parameters.perturbations)]  # type: ignore[attr-defined]
    n, total, centred, count, of_spread, squares, many = sums
    _, _, mean, spread, _ = parameters.columns  # type: ignore[attr-defined]
    variance = squares / many + spread.offset - (of_spread / many) ** 2
    return pd.DataFrame({"n": n, "total": total, "mean": mean.centre + centred / count, "spread": np.sqrt(variance.clip(lower=0))})


def inside(row: object, ranks: tuple[np.ndarray, np.ndarray] | None, upper: float) -> float:
    """Share of the three quartiles whose rank is within 1.96 printed errors of what was asked for."""
    if ranks is None or np.isnan(row.s4):  # type: ignore[attr-defined]
        return np.nan
    leaf, count = ranks
    found = []
    for k in (1, 2, 3):
        place = round(getattr(row, f"c4_{k}") / upper * 4096)
        low, high = (count[leaf <= at].sum() / count.sum() for at in (place - 1, place))
        found.append(max(low - k / 4, k / 4 - high, 0.0) <= 1.96 * row.s4)  # type: ignore[attr-defined]
    return float(np.mean(found))


def main() -> None:
    """Print a line per stream and aggregate."""
    path, keys = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 200
    for name in STREAMS:
        rows = shown(name, path, keys)
        for alias in ("n", "total", "mean", "spread", "quartiles"):
            of, few = rows[f"in_{alias}"], rows["n"] < FEW
            print(
                f"{name} {alias}: {of.mean():.1%} of {of.notna().sum():,} cells, {of[few].mean():.1%} of small keys'; NULL {of.isna().mean():.1%}"
            )


if __name__ == "__main__":
    main()
