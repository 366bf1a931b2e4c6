"""What the default of G costs on the demo's edits: errors of one release by G, as multiples of that of the best G and c.

    python benchmarks/defaults.py

The error is |released - true|, added up over channels. A channel that is not released counts whole.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import pandas as pd

import dpsql

CHECKOUT = Path(__file__).resolve().parent.parent
EPSILONS = (0.25, 1.0, 6.0)
GROUPS = (1, 2, 4, 8, 16, 32)
ROWS = (1, 2, 4, 8)
DRAWS = 3


def error(released: pd.Series, truth: pd.Series) -> float:
    """Return the sum of the absolute errors over all keys."""
    return float((truth - released.reindex(truth.index).fillna(0)).abs().sum())


def regrets(session: dpsql.Session, aggregate: str, epsilon: float, truth: pd.Series) -> str:
    """Return a row of the table: the regret of each G, with c = 2 where rows count."""
    rows_tried = ROWS if aggregate == "COUNT(*)" else (1,)
    shown_rows = rows_tried[:2][-1]
    sql = f"SELECT key, {aggregate} AS n FROM edits GROUP BY key"
    errors = {}
    for groups, rows in itertools.product(GROUPS, rows_tried):
        limits = {"max_groups_contributed": groups}
        if len(rows_tried) > 1:
            limits["max_rows_per_group"] = rows
        draws = [session.query(sql, epsilon=epsilon, **limits).all_rows for _ in range(DRAWS)]
        errors[groups, rows] = sum(error(draw.set_index("key")["n"], truth) for draw in draws)
    best = min(errors.values())
    cells = (f"{errors[groups, shown_rows] / best:.2f}" for groups in GROUPS)
    return f"| {aggregate}, epsilon {epsilon:g} | " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    edits = pd.read_parquet(CHECKOUT / "conf/demo/wiki")
    truths = {
        "COUNT(DISTINCT user_id)": edits.groupby("key")["user_id"].nunique(),
        "COUNT(*)": edits.groupby("key").size(),
    }
    records = edits[["user_id", "key"]]
    print("| G | " + " | ".join(map(str, GROUPS)) + " |")
    print("|---" * (len(GROUPS) + 1) + "|")
    with tempfile.TemporaryDirectory() as folder:
        session = dpsql.session(records, unit="user_id", secret=Path(folder, "secret"))
        for aggregate, truth in truths.items():
            for epsilon in EPSILONS:
                print(regrets(session, aggregate, epsilon, truth), flush=True)


if __name__ == "__main__":
    main()
