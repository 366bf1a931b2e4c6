"""What must not change by accident, one line per query: its plan's identity, its released rows and the numbers that are said of it, as digests.

    python -m tests.frozen [NAME ...]     writes tests/golden/frozen.txt anew, or these lines of it, and names every line that changed
    python -m tests.frozen --show NAME    the whole plan with what was parsed, and the facts, as JSON; then the explanation

A line that changes means: runs of this query that are under way do not go on (identity), or would publish other numbers (rows), or only that
people are told other numbers (the last digest). Where one of the first two is meant, the changelog says so and the `PLAN_VERSION` of its planner has
been raised, or the query's kind is refused for old runs. To see which number it was, compare what `--show` prints before and after.

Nothing else has to be kept of a plan: identity digests its document, which has what was parsed and every number that the planner chose
(`test_frozen.py` looks). What the accountant and `explain` make of these is in no identity, and so has a digest of its own.
"""

import hashlib
import json
import math
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpsql.compiled import Query
from dpsql.local.feeder import Feeder
from dpsql.mechanisms.public_groups import public_groups
from dpsql.privacy.secret import Secret
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.keys import encode
from dpsql.udfs.stage import BEGIN, END, Clock

FILE = Path(__file__).parent / "golden" / "frozen.txt"
SECRET = Secret(bytes(range(32)))
RUN_ID = "5a" * 16
DIGITS = 16
RECORDS = 2000
USERS = 1500
WINDOWS = 2.5
TRIGGERS = 12
"""Records are of two and a half windows, but of no more triggers: some windows have thousands."""
PASSED = 500
"""Of the first window: each trigger before is a step of every path."""
HEAD = """\
# Of every accepted golden query and every query of tests/matrix: the beginning of its plan's identity, a digest of the rows that it
# releases, how many these are, a digest of the numbers that are said of it. See tests/frozen.py, which writes this file. First frozen at
# commit 27b5d01.
"""
NUMBER = r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?"
FIRST_US = 1_767_225_600_000_000
"""2026-01-01: where no start is declared."""


def digest(table: pa.Table) -> str:
    """Names, types and values of a table in its order: a double by its bits, NULL and NaN apart, however it is cut into chunks."""
    found = hashlib.sha256()
    for name, column in zip(table.column_names, table.columns, strict=True):
        found.update(f"{name} {column.type} {len(column)}\n".encode())
        values = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        for value in values.to_pylist():
            found.update(f"{value.hex() if isinstance(value, float) else repr(value)}\n".encode())
    return found.hexdigest()[:DIGITS]


def line(query: Query, rows: pa.Table) -> str:
    return f"{query.plan.identity[:DIGITS]} {digest(rows)} {rows.num_rows} {numbers_said(query.explain_json(), query.explain())}"


def numbers_said(facts: dict[str, Any], explanation: str) -> str:
    """A digest of the facts of a query, but for its identity, and of the numbers in its explanation, in their order. Floats of facts count
    with 32 bits: quantiles and square roots may end in another bit on another machine."""
    text = explanation.split("\nQuery identity", maxsplit=1)[0]
    said = [rounded(facts | {"identity": ""}), re.findall(NUMBER, text)]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:DIGITS]


def rounded(value: Any) -> Any:
    """A JSON value with floats as texts, which no integer is equal to. In binary: planned numbers have few bits, and none lies at a half."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(math.ldexp(mantissa, 32)), exponent - 32).hex()


def shown(query: Query) -> str:
    """The whole plan, the facts, and what the public table says of itself, a text for each fact, as JSON; lists of numbers are on a line each."""
    said = [
        (name, one)
        for name, value in json.loads(query.published.text()).items()
        for one in (value if isinstance(value, list) else [value])
    ]
    told = [f"{name}: {json.dumps(one)}".replace('"', "") for name, one in said]
    text = json.dumps(
        {"plan": query.document(), "facts": query.explain_json(), "published": told},
        indent=2,
        ensure_ascii=False,
    )
    return (
        re.sub(r"\[\n([^][{}]*)\n *\]", lambda found: f"[{' '.join(found[1].split())}]", text)
        + "\n"
    )


def frozen() -> dict[str, str]:
    lines = [
        line
        for line in FILE.read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    return {name: value.strip() for name, _, value in (line.partition(": ") for line in lines)}


def released(query: Query, triggers: int = TRIGGERS) -> pa.Table:
    """What the two steps release of made-up records: three keys of which two are common, and numbers of every kind.

    Args:
        query: any; its FROM part takes no part, so that it need not be readable here.
        triggers: that records are of, at most.
    """
    plan = query.plan
    salt = SECRET.salt(RUN_ID)
    names = [encode([f"key {i}".encode()] * len(plan.query.keys)) for i in range(3)]
    if domains := getattr(plan.query.asked, "domains", ()):  # other keys would be dropped
        names = [
            encode([domain.values[i % domain.size].encode() for domain in domains])
            for i in range(3)
        ]
    public = (
        public_groups(
            plan, query.source, salt, [*names[1:], encode([b"nobody"] * len(plan.query.keys))]
        )
        if query.shape.listed
        else None
    )
    feeder = Feeder(
        query.mechanism.stages(plan, query.facts(public)), SECRET.noise_key(RUN_ID, plan.identity)
    )
    first = public.first_window_us if public else _begin_us(query)
    span = _span_us(query, triggers)
    for rows in _records(query, first, span, [b""] * 3 if not plan.query.keys else names):
        feeder.micro_batch(rows, Clock(NO_CLOCK, 1 << 62))
    window = plan.query.windows if plan.query.window or plan.query.once else None
    after = (window.size_us if window else 0) + plan.query.allowed_lateness_us
    closed = first + span + min(after, triggers * plan.query.trigger_interval_us)
    return pa.concat_tables(feeder.tick(closed)).combine_chunks()


def _begin_us(query: Query) -> int:
    """Where records begin: within a window that has gone on for no more triggers than `PASSED`."""
    if query.plan.query.once:
        return 0
    if (window := query.plan.query.window) is None:
        return FIRST_US
    passed = (FIRST_US - window.offset_us) % window.slide_us
    return FIRST_US - passed + min(passed, PASSED * query.plan.query.trigger_interval_us)


def _span_us(query: Query, triggers: int) -> int:
    parsed = query.plan.query
    if parsed.once:
        return 0
    if parsed.window is None:
        return triggers * parsed.trigger_interval_us
    return min(int(WINDOWS * parsed.window.size_us), triggers * parsed.trigger_interval_us)


def _records(query: Query, first_us: int, span_us: int, names: list[bytes]) -> Iterator[pa.Table]:
    salt = SECRET.salt(RUN_ID)
    number = np.arange(RECORDS)
    keys = [
        int.from_bytes(hashlib.sha256(salt + b"k" + name).digest()[:8], "big", signed=True)
        for name in names
    ]
    key = np.where(number % 97 == 0, 2, number % 2)
    users = [
        int.from_bytes(hashlib.sha256(salt + b"u%d" % user).digest()[:8], "big", signed=True)
        for user in range(USERS)
    ]
    columns = {
        "drop": pa.array(np.zeros(RECORDS, np.int8)),
        "user": pa.array(np.array(users, np.int64)[number * 7 % USERS]),
    }
    columns |= {
        "ts": pa.array(first_us + number * span_us // RECORDS),
        "key": pa.array(np.array(keys, np.int64)[key]),
    }
    columns |= {"key_bytes": pa.array([names[i] for i in key], pa.binary())}
    for i, presence in enumerate(argument.presence_only for argument in query.shape.arguments):
        values = np.where(number % 11 == i, np.nan, 1.0 if presence else number % 83 / 4 - 3)
        columns[f"a{i}"] = pa.array(
            values if presence else np.where(number % 101 == 0, np.inf, values)
        )
    if query.shape.feed:  # of a row's three images the second ends it
        row = number * 7 % USERS // 3
        kind = np.where(number % 3 == 1, END, BEGIN).astype(np.int8)
        columns |= {
            "user": pa.array(np.array(users, np.int64)[row]),
            "row": pa.array(row),
            "seq": pa.array(number),
            "kind": pa.array(kind),
        }
    table = pa.table(columns)
    yield from (table.slice(0, RECORDS // 3), table.slice(RECORDS // 3))


def current(folder: Path) -> Mapping[str, Callable[[], str]]:
    """Every name with what makes its line today: the golden queries, and those of tests/matrix on the demo data.

    Args:
        folder: an empty one, for the streams of the matrix.
    """
    from tests.matrix.same_rows import QUERIES, SPARK_ONLY, local_rows, wiki
    from tests.sql.golden import compiled, goldens

    def golden_line(name: str) -> str:
        query = compiled(accepted[name])
        return line(query, released(query))

    def matrix_line(name: str) -> str:
        query = wiki().query(name, folder / name / "data")
        return line(
            query,
            _spark_rows(query, folder / name)
            if name in SPARK_ONLY
            else local_rows(query, wiki(), 1, (1, 1)),
        )

    accepted = {golden.name: golden for golden in goldens("accepted")}
    return {name: partial(golden_line, name) for name in accepted} | {
        f"matrix/{name}": partial(matrix_line, name) for name in QUERIES
    }


def _spark_rows(query: Query, folder: Path) -> pa.Table:
    """The local engine refuses two queries of the matrix."""
    from dpsql import jars
    from dpsql.streaming.session import session
    from tests.matrix.same_rows import spark_rows, wiki

    spark = session(
        "local[2]", {"spark.jars": ",".join(map(str, jars.ensure())), "spark.ui.enabled": "false"}
    )
    return spark_rows(spark, query, wiki(), 2, (2, 2), folder / "lake")


def show(name: str) -> int:
    from tests.sql.golden import compiled, goldens

    found = [
        compiled(golden) for golden in goldens("accepted") if name in (golden.name, golden.stem)
    ]
    if not found:
        sys.exit(f"no such golden query: {name}")
    print(f"{shown(found[0])}\n{found[0].explain()}")
    return 0


def main(wanted: list[str]) -> int:
    """Write the file anew, or some lines of it, and say what changed."""
    if wanted[:1] == ["--show"] and len(wanted) == 2:
        return show(wanted[1])
    before = frozen() if FILE.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        lines = current(Path(folder))
        if unknown := set(wanted) - set(lines):
            sys.exit(f"no such query: {', '.join(sorted(unknown))}")
        after = {
            name: make() if name in (wanted or lines) else before[name]
            for name, make in lines.items()
            if name in (wanted or lines) or name in before
        }
    width = max(map(len, after)) + 1
    text = "".join(f"{name + ':':<{width}} {after[name]}\n" for name in sorted(after))
    FILE.write_text(HEAD + text, encoding="utf-8")
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            print(f"{name}: {before.get(name)} -> {after.get(name)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
