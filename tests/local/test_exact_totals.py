"""Who sees which number: totals are planted, every command and interface is run, and what they give out is what docs/privacy/index.md lists."""

import ast
import json
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

import dpsql
from dpsql.jobs import run_query
from dpsql.jobs.cli import main
from dpsql.jobs.status import ALARM
from dpsql.lake.event_log import FILE, EventLog
from dpsql.lake.opening import open_run
from dpsql.lake.runs import Lake
from dpsql.lake.status import status
from dpsql.local.feeder import run_batches, try_query
from dpsql.local.record_reader import RowReader
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret
from dpsql.privacy.totals import FIELDS
from dpsql.streaming.context import RunContext
from dpsql.streaming.progress import Progress, Summary, Tally
from tests.local.conftest import DAY, HOUR, RUN, SQL
from tests.local.published import publish

CHECKOUT = Path(__file__).resolve().parents[2]
ONE = 4327
MALFORMED = 3719
OTHERS = 1201
FILES = 1013
"""Records of one person with one key, of whom 8 count; lines with a time that cannot be read; people who have two of another key; files that
come too late."""
RECORDS = ONE + MALFORMED + 2 * OTHERS
DROPPED = ONE - 8
PLANTED = {
    "records": RECORDS,
    "dropped": DROPPED,
    "malformed": MALFORMED,
    "one key": ONE,
    "files": FILES,
}
PLANTED["all dropped"] = DROPPED + MALFORMED
SHARE = (DROPPED + MALFORMED) / RECORDS
FOUND = {
    name: re.compile(rf"(?<![\w.]){total:,}(?![\w])|(?<![\w.]){total}(?![\w])")
    for name, total in PLANTED.items()
}
# Of so many digits that no time that something took has them by chance
FOUND["share"] = re.compile(rf"(?<![\d.])(?:{SHARE:.0%}|{re.escape(f'{SHARE:.7f}'[:-1])})")

SOURCE = f"""sources:
  visits:
    format: json
    path: data
    schema: user_id STRING, page STRING, ts TIMESTAMP, seconds DOUBLE
    event_time: ts
    privacy_unit: user_id
    max_malformed: {MALFORMED - 1}
"""
LINE = '{"user_id": "USER", "page": "PAGE", "ts": "2024-02-29T01:00:00Z", "seconds": 20}\n'
"""Noisy sums of the seconds are far from every planted number: none is one of them by chance."""
UNTIL = "2024-03-01"


@dataclass
class Seen:
    """Which planted number was where."""

    found: set[tuple[str, str]] = field(default_factory=set)
    commands: set[str] = field(default_factory=set)

    def text(self, where: str, text: str) -> None:
        self.found |= {(name, where) for name, wanted in FOUND.items() if wanted.search(text)}

    def command(self, *words: str, code: int = 0, called: str = "") -> None:
        done = CliRunner().invoke(main, [*words])
        assert done.exit_code == code, (words, done.output, done.exception)
        self.commands.add(words[0])
        self.text(called or words[0], done.output)

    def value(self, value: Any) -> None:
        """What an interface gives back: its text, and its attributes."""
        name = type(value).__name__
        self.text(f"repr({name})", repr(value) + str(value))
        for total in sorted(FIELDS & {*dir(value)}):
            self.text(name, json.dumps(getattr(value, total)))


def listed(public: bool) -> set[tuple[str, str]]:
    """The planted kinds of numbers that the table lists, and where."""
    section = (
        (CHECKOUT / "docs/privacy/index.md")
        .read_text()
        .split("### Who sees which number\n")[1]
        .split("\n## ")[0]
    )
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 8 and all(len(row) == 5 for row in rows)
    told = [
        (re.findall("`(.*?)`", row[0]), re.findall("`(.*?)`", row[2]))
        for row in rows
        if public or "`public: true`" not in row[0]
    ]
    return {
        (number, where)
        for numbers, places in told
        for number in numbers
        if number in FOUND
        for where in places
    }


def played(
    _: object,
    query: dpsql.Query,
    run: Any,
    lake: Lake,
    secret: Secret,
    *,
    until_us: int,
    **options: Any,
) -> Summary:
    """A catch-up with Spark's part played: what it counts and tells is the product's own."""
    tally = Tally(
        options["progress"],
        EventLog(lake.private(run.name), run.run_id, run.name, options["log"], options["metrics"]),
    )
    with tally.events.of_start("catch_up", threading.Event()):
        tally.begin(0)
        feeder = publish(
            lake, run, query, secret, [Path("data/a.json").absolute()], [([(0, [0])], until_us)]
        )
        malformed = feeder.drops.pop("malformed")
        assert (feeder.records, feeder.drops["over_max_rows"], malformed) == (
            RECORDS,
            DROPPED,
            MALFORMED,
        )
        tally.add_dropped(feeder.drops)
        told = {"": SimpleNamespace(asDict=lambda: {"malformed": malformed})}
        report = {
            "batchId": 0,
            "numInputRows": feeder.records,
            "processedRowsPerSecond": RECORDS,
            "durationMs": {"addBatch": 500},
        }
        RunContext.was_read(
            SimpleNamespace(query=query, tally=tally),
            SimpleNamespace(**report, observedMetrics=told),
        )  # type: ignore[arg-type]
        tally.publishing(until_us)
        tally.add_published(4, 8)
        tally.tell()
    return tally.summary(stopped=False, not_read=["late.json"] * FILES)


def plant(folder: Path) -> None:
    """The query and its input."""
    (folder / "data").mkdir()
    one = LINE.replace("USER", "u").replace("PAGE", "/p")
    others = "".join(LINE.replace("USER", f"u{i}").replace("PAGE", "/q") * 2 for i in range(OTHERS))
    (folder / "data/a.json").write_text(
        one * ONE + others + one.replace("2024-02-29T", "x") * MALFORMED
    )
    (folder / "q.sql").write_text(SQL)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A query over a folder of lines, and a `dpsql run` without Spark."""
    plant(tmp_path)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPSQL_SECRET_FILE", str(tmp_path / "keys/secret"))
    spark = SimpleNamespace(session=lambda *_: SimpleNamespace(stop=lambda: None))
    monkeypatch.setitem(sys.modules, "dpsql.streaming.session", spark)
    monkeypatch.setitem(
        sys.modules, "dpsql.streaming.job", SimpleNamespace(run=played, LiveOptions=lambda *_: None)
    )
    look = SimpleNamespace(check_fits=lambda *_, **__: None)
    monkeypatch.setitem(sys.modules, "dpsql.streaming.first_look", look)
    monkeypatch.setattr(run_query, "spark_properties", lambda *_: {})
    monkeypatch.setattr("dpsql.jobs.verify.spark_reader", lambda _: lambda source, files: files)
    monkeypatch.setattr(
        "rich.progress.Progress.update", lambda *_, description: print(description, file=sys.stderr)
    )  # as in a terminal
    return tmp_path


@pytest.mark.parametrize("public", [False, True])
def test_every_number_that_is_given_out_is_listed(place: Path, public: bool) -> None:
    """Both ways: nothing else is given out, and nothing is listed that is not there. Catches: any predicate answered exactly, outside the budget."""
    (place / "sources.yaml").write_text(SOURCE + ("    public: true\n" if public else ""))
    seen = Seen()
    query = ("q.sql", "--sources", "sources.yaml")
    for flags in ((), ("--json",), ("--output", "o.parquet"), ("--json", "--output", "o.parquet")):
        seen.command("try", *query, "--until", UNTIL, *flags)
    for name, flags in (("plain", ()), ("json", ("--json",))):
        lake = (name, "--lake", "lake")
        files = ("--log", str(place / "log"), "--metrics", str(place / "metrics"))
        seen.command(
            "run",
            *query,
            "--lake",
            "lake",
            "--name",
            name,
            "--until-caught-up",
            "--until",
            UNTIL,
            *files,
            *flags,
        )
        seen.command("status", *lake, *flags, code=ALARM)  # many records are malformed
        for words in (("show",), ("show", "--all"), ("compare", "/q"), ("verify", *query[1:])):
            seen.command(words[0], *lake, *words[1:], *flags)
        seen.command("status", *lake, "--max-drop-share", "0.5", *flags, code=ALARM)
        seen.command("savepoint", name, "first", *lake[1:], *flags, code=2)
        seen.command("stop", *lake, *flags, code=2)
        seen.command("restore", *lake, *query[1:], *flags, code=2)
        seen.command("status", *lake[1:], *flags)
        seen.command("ask", name, "/p", *lake[1:], *flags, code=2)
        seen.command("ask", *lake, "--synthetic", *flags, code=2)
        seen.command("explain", *query, *flags)
        seen.command("budget", *query[1:], *flags)
        seen.command(
            "try",
            *query,
            "--compare",
            "--input",
            "visits=copy",
            "--until",
            UNTIL,
            *flags,
            called="try --compare",
        )
        seen.command("tune", *query, "--sample", "visits=copy", *flags)
    seen.command("view", *lake, "--out", "page.html")
    seen.command("init", "new")
    for called, path in (
        ("--log", place / "log"),
        ("--metrics", place / "metrics"),
        (FILE, place / "lake/private/plain" / FILE),
    ):
        seen.text(called, path.read_text())
        assert path.stat().st_mode & 0o077 == 0
    seen.text("view", Path("page.html").read_text())
    for i in range(FILES):
        (place / f"data/{i}.json").touch()
    for flags in ((), ("--json",)):
        seen.command("verify", *lake, *query[1:], *flags)
    seen.text("SECRETFILE.last-read.json", Path("keys/secret.last-read.json").read_text())
    for value in interfaces():
        seen.value(value)
    assert seen.commands == {*main.commands} and seen.found == listed(public)


def interfaces() -> Iterator[Any]:
    """What programs are given."""
    query = dpsql.compile(SQL, dpsql.load_sources("sources.yaml"))
    secret = Secret.load("keys/secret")
    yield status(Lake("lake"), "plain")
    yield dpsql.latest("lake", "plain")
    yield try_query(
        query, {"visits": [Path("copy")]}, run_id=RUN, secret=secret, until_us=DAY + 24 * HOUR
    )
    reader = RowReader(query.plan, query.sources, secret.salt(RUN), {})
    rows = [reader.batch_rows([Path("data/a.json")])]
    facts = query.facts(None)
    yield run_batches(
        query.plan,
        rows,
        noise_key=bytes(32),
        key_types=reader.key_types,
        until_us=DAY + 24 * HOUR,
        facts=facts,
    )
    frame = pd.DataFrame(
        {
            "user_id": ["u"] * ONE,
            "page": ["/p"] * ONE,
            "ts": pd.Timestamp("2024-02-29T01:00:00Z"),
            "seconds": 1.5,
        }
    )
    answer = dpsql.query(SQL, frame, unit="user_id", time="ts", until=UNTIL, secret=secret)
    yield from (answer, answer._repr_html_(), answer.explain())
    yield dpsql.run_local(query, frame, secret, until_us=DAY + 24 * HOUR)
    lake = Lake("lake")
    told = list[Progress]()
    run = open_run(lake, "handle", query, secret, Ledger.beside(Path("keys/secret")), query.source)
    yield played(
        None,
        query,
        run,
        lake,
        secret,
        until_us=DAY + 24 * HOUR,
        progress=told.append,
        log=None,
        metrics=None,
    )
    yield from told


def test_no_value_shows_a_total_by_itself() -> None:
    """Catches: one more class with totals, which is not in the table."""
    found = set()
    for path in [
        path
        for room in ("local", "lake", "streaming")
        for path in (CHECKOUT / "dpsql" / room).glob("*.py")
    ]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not any(
                "repr=False" in ast.unparse(each) for each in node.decorator_list
            ):
                fields = [
                    each
                    for each in node.body
                    if isinstance(each, ast.AnnAssign) and ast.unparse(each.target) in FIELDS
                ]
                assert all(
                    each.value is not None and "repr=False" in ast.unparse(each.value)
                    for each in fields
                ), node.name
                found |= {node.name} if fields else set()
    assert found == {where for _, where in listed(True) if where in found} != set()
