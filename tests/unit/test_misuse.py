"""Ways of holding it wrong: each ends in one helpful message, exit code 2, nothing spent, nothing made. Others, where something has been spent:
`test_refused_is_unspent.py`."""

import os
import shlex
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner

from dpsql.jobs.cli import main
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import default_secret_path
from tests.unit.workplace import SOURCES, place, records

SQL = """\
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-7, privacy_unit_column = user_id, max_rows_contributed = 8)
  page, COUNT(*) AS views, SUM(seconds, contribution_bounds_per_row => (0, 60)) AS total
FROM visits
GROUP BY window(ts, '1 day'), page
"""
Change = Callable[[Path], object]
OLD_JAVA = "#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n"


@dataclass(frozen=True)
class Case:
    """One mistake.

    Args:
        words: the command, as typed in a folder with views.sql and conf/sources.yaml.
        says: what the message has to say.
        lines: of the message: one, or four where SQL is shown with the place underlined, and a whole query where one is proposed.
        make: what is wrong in the folder.
        environment: what is wrong around it.
    """

    name: str
    words: str
    says: str
    lines: int = 1
    make: Change = field(default=lambda folder: None)
    environment: dict[str, str] = field(default_factory=dict)


def sql(old: str, new: str) -> Change:
    return lambda folder: (folder / "views.sql").write_text(
        SQL.replace(old, new).replace(", page\n", ", path\n" if "path" in new else ", page\n")
    )


def sources(old: str, new: str) -> Change:
    return lambda folder: (folder / "conf" / "sources.yaml").write_text(SOURCES.replace(old, new))


def file(name: str, content: str | bytes = "", mode: int = 0o600) -> Change:
    def make(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(mode)

    return make


def both(*changes: Change) -> Change:
    return lambda folder: [change(folder) for change in changes]


def visits(**columns: object) -> Change:
    return lambda folder: records(**columns).to_parquet(folder / "visits.parquet")


WITHOUT_SCHEMA = "\n".join(
    line for line in SOURCES.replace("parquet", "csv").splitlines() if "schema" not in line
)
ON_SPARK = "\n  page,", "\n  substring_index(page, '?', 1) AS path,"
BROKEN_LEDGER = file("k/key", b"k" * 32), file("k/ledger/000001.json", "{")
WITHOUT_WINDOW = (
    file(
        "views.sql",
        SQL.replace("= 8)", "= 8, trigger_interval = '1 day')").replace(
            "window(ts, '1 day'), ", ""
        ),
    ),
    file("conf/sources.yaml", SOURCES + "    start: 2026-01-01\n"),
)
TUNE_MEASURES = "tune measures queries with a window; what another setting does to queries without a window, `dpsql try` shows"
RUN = "run views.sql --lake lake"
EXPLAIN = "explain views.sql"
TRY = "try views.sql --input visits.parquet"
TUNE = "tune views.sql --sample"
CASES = [
    # words
    Case("typo in a command", "explan views.sql", "Did you mean 'explain'?"),
    Case("typo in a flag", "explain views.sql --jason", "Did you mean '--json'?"),
    Case("no query", "explain", "Missing argument 'QUERY.sql' (see: "),
    Case("no lake", "show views", "Missing option '--lake'"),
    Case("no sample", "tune views.sql", "Missing option '--sample'"),
    Case("no number", f"{RUN} --buckets many", "'many' is not a valid integer range"),
    Case("no duration", f"{RUN} --interval 10s", "write it like '30 seconds'"),
    Case(
        "a lost ledger",
        "budget --json --record views",
        "there is no `dpsql budget --record`: write `dpsql restore NAME --ledger`",
    ),
    Case("no lake for a run", "run views.sql", "--lake"),
    # paths
    Case("wrong path of a query", "explain view.sql", "'view.sql' does not exist"),
    Case("a folder as a query", "explain conf", "'conf' is a directory"),
    Case(
        "wrong path of sources",
        f"{EXPLAIN} --sources source.yaml",
        "source.yaml: no such file; name the right one with --sources",
    ),
    Case("no input where sources.yaml says", "try views.sql", "no such file or folder"),
    Case(
        "input of no source",
        "try views.sql --input vists=views.sql",
        "no such source: the query reads visits",
    ),
    Case(
        "output of another kind",
        "try views.sql --input views.sql --output x.csv",
        "must end in .parquet",
    ),
    Case(
        "a lake that is a file",
        f"{RUN} --until-caught-up",
        "lake: Not a directory",
        make=file("lake"),
    ),
    Case(
        "a lake that cannot be made",
        "run views.sql --lake taken/lake",
        "Not a directory",
        make=file("taken"),
    ),
    Case(
        "a command that is another one now",
        "list",
        "there is no `dpsql list`: write `dpsql status`",
    ),
    Case("another one", "synthesize views", "write `dpsql ask NAME --synthetic`"),
    Case("a value beside a table", "ask views a --synthetic --lake lake", "answers nothing"),
    Case("a name with a blank", f"{RUN} --name a/b", "letters, digits, _ and - only"),
    # sources.yaml
    Case(
        "YAML with a tab",
        EXPLAIN,
        "sources.yaml:2:1: not valid YAML",
        make=file("conf/sources.yaml", "sources:\n\ta: 1\n"),
    ),
    Case(
        "typo in a setting",
        EXPLAIN,
        "did you mean `privacy_unit`?",
        make=sources("privacy_unit", "privacy_units"),
    ),
    Case(
        "no privacy unit",
        EXPLAIN,
        "2:61: The source visits declares no privacy unit",
        4,
        sources("    privacy_unit: user_id\n", ""),
    ),
    Case(
        "csv without schema",
        EXPLAIN,
        "format csv needs `schema`",
        make=file("conf/sources.yaml", WITHOUT_SCHEMA),
    ),
    # SQL
    Case("an empty query", EXPLAIN, "The file holds no query", 4, make=file("views.sql")),
    Case("an option that is missing", EXPLAIN, "epsilon", 4, make=sql("epsilon = 6, ", "")),
    Case(
        "an epsilon that promises nothing",
        EXPLAIN,
        "views.sql:2:",
        4,
        make=sql("epsilon = 6", "epsilon = 600"),
    ),
    Case(
        "no such source", EXPLAIN, "did you mean visits?", 13, make=sql("FROM visits", "FROM visit")
    ),
    Case(
        "no such column",
        EXPLAIN,
        "did you mean seconds?",
        13,
        make=sql("SUM(seconds", "SUM(second"),
    ),
    Case(
        "a sum without bounds",
        EXPLAIN,
        "contribution_bounds_per_row",
        4,
        make=sql(", contribution_bounds_per_row => (0, 60)", ""),
    ),
    Case("a window of a month", EXPLAIN, "length varies", 4, make=sql("'1 day'", "'1 month'")),
    Case(
        "a query that is not UTF-8",
        EXPLAIN,
        "not UTF-8 (byte 4)",
        make=file("views.sql", b"-- \xe9"),
    ),
    # records
    Case(
        "a function of Spark",
        TRY,
        "`substring_index` runs on Spark only: use `dpsql run",
        make=both(visits(), sql(*ON_SPARK)),
    ),
    # secret and ledger
    Case(
        "a secret of another kind",
        f"{TRY} --secret-file key",
        "has 3 bytes, not 32",
        make=both(visits(), file("key", "abc")),
    ),
    Case(
        "a secret below a file",
        f"{TRY} --secret-file key/k",
        "a file, not a folder",
        make=both(visits(), file("key")),
    ),
    Case(
        "a damaged ledger",
        f"{TRY} --secret-file k/key",
        "put back the original file",
        make=both(visits(), *BROKEN_LEDGER),
    ),
    # tuning
    Case(
        "no such aggregate",
        f"{TUNE} visits.parquet --column view",
        "the query's aggregates are views, total",
        make=visits(),
    ),
    Case(
        "another mechanism's query",
        f"{TUNE} visits.parquet",
        TUNE_MEASURES,
        make=both(*WITHOUT_WINDOW),
    ),
    # Spark
    Case(
        "no Java",
        RUN,
        "JAVA_HOME is /nowhere, which has no bin/java",
        environment={"JAVA_HOME": "/nowhere"},
    ),
    Case(
        "no Java on the path",
        RUN,
        "Java is missing: install a JRE 17 or 21",
        environment={"PATH": "/nowhere", "JAVA_HOME": ""},
    ),
    Case(
        "an old Java",
        RUN,
        "is Java 11, and Spark needs 17 or 21",
        1,
        file("jre/bin/java", OLD_JAVA, 0o755),
        {"JAVA_HOME": "jre"},
    ),
    Case(
        "no Spark in SPARK_HOME",
        RUN,
        "where there is no Spark: unset it",
        environment={"SPARK_HOME": "/nowhere"},
    ),
    Case(
        "an old Spark",
        RUN,
        "is Spark 3.5.1; dpsql runs on",
        1,
        file("old/jars/spark-core_2.12-3.5.1.jar"),
        {"SPARK_HOME": "old"},
    ),
    Case(
        "a master that is none",
        f"{RUN} --master loacl",
        "write it like local[2], spark://host:7077",
    ),
    Case(
        "a properties file that is not there",
        f"{RUN} --properties-file spark.conf",
        "'spark.conf' does not exist",
    ),
    Case(
        "a file of no properties",
        f"{RUN} --properties-file spark.conf",
        "spark.conf:1: not a setting",
        make=file("spark.conf", "spark"),
    ),
]


def test_there_are_at_most_15_commands() -> None:
    assert len(main.commands) <= 15  # one more has to replace one


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_mistake_is_one_message(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = place(tmp_path / "work")
    (folder / "views.sql").write_text(SQL)
    case.make(folder)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    for name, value in case.environment.items():
        monkeypatch.setenv(name, value)
    before = files_of(folder)
    result = CliRunner().invoke(main, shlex.split(case.words))
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert case.says in result.stderr, result.stderr
    assert "Traceback" not in result.stderr
    told = [
        line for line in result.stderr.rstrip().splitlines() if not line.startswith("new secret ")
    ]  # which is no mistake
    assert len(told) == case.lines, result.stderr
    assert Ledger.beside(default_secret_path(os.environ)).lines() == (), "something was spent"
    assert "new secret" in result.stderr or not default_secret_path(os.environ).exists()
    assert files_of(folder) == before, "something was made"


def files_of(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if stat.S_ISREG(path.lstat().st_mode)}


def test_there_are_enough_and_each_says_something_else() -> None:
    assert len(CASES) >= 30
    assert len({(case.words, case.says) for case in CASES}) == len(CASES)
