"""The wheel: everything that needs no jar works from it, in any folder; and the shell completes commands."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dpsql.jobs.cli import main
from dpsql.lake.runs import Lake
from tests.bare import bare_environment
from tests.described import write
from tests.published.test_readers import query_and_rows
from tests.unit.workplace import place, published, records

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    out = tmp_path_factory.mktemp("wheel")
    for room in ("dpsql", "jobs", "udfs"):
        shutil.copytree(
            CHECKOUT / room,
            source / room,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    for room in ("conf", "notebooks"):
        shutil.copytree(CHECKOUT / room, source / room)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, source)
    words = [
        "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out),
        ".",
    ]  # fmt: skip
    subprocess.run([sys.executable, *words], cwd=source, check=True, capture_output=True)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    site = wheel.parent / "site"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    return site


@pytest.fixture(scope="module")
def bare(wheel: Path) -> Path:
    """The interpreter of an environment with the wheel alone."""
    return bare_environment(wheel.parent / "bare", wheel)


def dp(
    installed: Path, folder: Path, *words: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    where = os.environ | {"PYTHONPATH": str(installed)} | environment
    code = "import sys; sys.argv[0] = 'dpsql'; from dpsql.jobs.cli import main; main(prog_name='dpsql')"
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *words],
        cwd=folder,
        env=where,
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_module_and_the_types_are_in_it(installed: Path) -> None:
    """Catches: a new package that pyproject.toml does not list."""
    expected = {
        path.relative_to(CHECKOUT).as_posix()
        for room in ("dpsql", "jobs", "udfs")
        for path in (CHECKOUT / room).rglob("*.py")
    }
    expected = {path if path.startswith("dpsql/") else f"dpsql/{path}" for path in expected}
    assert {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")} == {
        "dpsql"
    }
    assert {path.relative_to(installed).as_posix() for path in installed.rglob("*.py")} == expected
    assert (installed / "dpsql" / "py.typed").exists()
    conf = {
        path.relative_to(CHECKOUT).as_posix()
        for path in (CHECKOUT / "conf").rglob("*")
        if path.is_file()
    }
    conf = {
        path
        for path in conf
        if path != "conf/spark-defaults.conf" and not path.startswith("conf/live/")
    }  # that is docker-compose's
    assert {
        path.relative_to(installed / "dpsql").as_posix()
        for path in (installed / "dpsql" / "conf").rglob("*")
        if path.is_file()
    } == conf
    notebooks = [
        path.relative_to(CHECKOUT)
        for path in (CHECKOUT / "notebooks").rglob("*")
        if path.is_file() and ".ipynb_checkpoints" not in path.parts
    ]
    assert [path for path in notebooks if not (installed / "dpsql" / path).is_file()] == []
    assert {
        path.name for path in (installed / "dpsql" / "view").iterdir() if path.suffix != ".py"
    } == {"page.css", "page.html", "page.js"}


def test_commands_run_from_any_folder(installed: Path, tmp_path: Path) -> None:
    assert "dpsql explain conf/queries/demo.sql" in dp(installed, tmp_path, "init").stdout
    again = dp(installed, tmp_path, "init")
    assert (again.returncode, again.stderr) == (
        2,
        "conf already exists: give another folder, like `dpsql init private`\n",
    )
    flags = ("conf/queries/demo.sql",)
    assert "What is promised" in dp(installed, tmp_path, "explain", *flags).stdout
    tried = dp(
        installed,
        tmp_path,
        "try",
        *flags,
        "--until",
        "2015-09-13",
        DPSQL_SECRET_FILE=str(tmp_path / "keys" / "secret"),
    )
    assert "#en.wikipedia" in tried.stdout, tried.stderr


def test_the_shell_completes_commands(installed: Path, tmp_path: Path) -> None:
    asked = {"_DPSQL_COMPLETE": "bash_complete", "COMP_WORDS": "dpsql tu", "COMP_CWORD": "1"}
    assert dp(installed, tmp_path, **asked).stdout.split() == ["plain,tune"]
    assert "complete" in dp(installed, tmp_path, _DPSQL_COMPLETE="zsh_source").stdout


EVERY_COMMAND = """\
import json, shlex, sys
from click.testing import CliRunner
from dpsql.jobs.cli import main
done = {line: CliRunner().invoke(main, shlex.split(line)) for line in json.load(sys.stdin)}
json.dump({line: (one.exit_code, one.output) for line, one in done.items()}, sys.stdout)
"""
KINDS = {
    "counts": "smallest",
    "quantiles": "windows_quantiles",
    "lists": "sketch_user",
    "cells": "marginals_rollup",
}
"""Golden queries by what they publish."""
QUANTILES = "APPROX_QUANTILES(seconds, 2, contribution_bounds_per_row => (0, 9)) AS middle"
LISTED = """\
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 6, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 8, sketch_width = 1024)
  APPROX_TOP_COUNT(page, 3) AS top FROM visits GROUP BY window(ts, '1 day')
"""
OF_A_TABLE = (
    "show {} --lake lake",
    "show {} --json --lake lake",
    "show lake/public/{}",
    "compare {} a b --lake lake",
    "view {} --lake lake",
)
OF_A_RUN = tuple(
    f"{name} views --lake lake"
    for name in ("status", "show", "compare", "view", "stop", "verify", "savepoint", "restore")
)
TRY = "--input visits.parquet --until 2026-01-03"
OTHERS = (
    "init new", "explain views.sql", "explain views.sql --missing", "explain views.sql --json", "tune views.sql --sample visits.parquet",
    *(f"try {query}.sql {TRY}{flag}" for query in ("views", "quantiles", "lists") for flag in ("", f" --output {query}.parquet")),
    f"try views.sql {TRY} --compare", "budget", "run views.sql --lake lake --name other --until-caught-up --master spark://127.0.0.1",
    "ask lists_all a --lake lake", "ask cells_all --synthetic --lake lake", "ask cells_none --synthetic --lake lake",
)  # fmt: skip
ANSWERS = ("init", "explain", "tune", "try", "budget", "status", "show")
"""Commands that are never refused here; the others have no run to work on, or no two keys to compare."""
NEEDS_EXTRA = (
    "dpsql view draws with jinja2, which is not installed: pip install 'dpsql[notebooks]'\n"
)
NEEDS_SPARK = (
    "Spark is not installed: pip install 'dpsql[spark]', or run `make setup` in a checkout\n"
)


FRAME_OF_ONES_OWN = """
import json, sys, pandas, dpsql
frame = pandas.read_csv("orders.csv", sep=";")
answer = dpsql.query(
    "SELECT Country, COUNT(DISTINCT Customer) AS people FROM orders GROUP BY Country", frame, unit="Customer", epsilon=1
)
print(json.dumps(answer.rows[["people", "people_stderr"]].values.tolist()))
"""


def test_a_file_of_ones_own_is_counted_by_the_wheel_alone(bare: Path, tmp_path: Path) -> None:
    """A CSV as Excel writes it, in an empty folder: in the terminal and in Python; `epsilon` is all that is said."""
    rows = "".join(f"c{i};{('de', 'fr')[i % 2]};{i},5\r\n" for i in range(4000))
    (tmp_path / "orders.csv").write_text(f"Customer;Country;amount\r\n{rows}", encoding="utf-8-sig")
    secret = {"DPSQL_SECRET_FILE": str(tmp_path / "keys" / "secret")}

    def output(code: str, *words: str) -> str:
        command = [str(bare), "-P", "-c", code, *words]
        environment = os.environ | secret
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    dpsql = "from dpsql.jobs.cli import main; main(prog_name='dpsql')"
    output(dpsql, "init", "orders.csv", "--unit", "customer")
    tried = json.loads(output(dpsql, "try", "conf/queries/first.sql", "--json"))
    people = [[row["people"], row["people_stderr"]] for row in tried["rows"]]
    for found in (people, json.loads(output(FRAME_OF_ONES_OWN))):
        assert len(found) == 2 and all(abs(n - 2000) < 6 * error < 400 for n, error in found)


def test_every_command_runs_without_extras(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: an import of what only an extra brings; an error of a table that has no row yet, one row, lists or quantiles."""
    monkeypatch.chdir(place(tmp_path / "work"))
    published()
    records().to_parquet("visits.parquet")
    sources = Path("conf/sources.yaml")
    sources.write_text(sources.read_text() + "    start: 2026-01-01\n")
    Path("quantiles.sql").write_text(
        Path("views.sql").read_text().replace("COUNT(*) AS views", QUANTILES)
    )
    Path("lists.sql").write_text(LISTED)
    lines = [*OTHERS, *OF_A_RUN]
    for kind, golden in KINDS.items():
        query, rows = query_and_rows(golden)
        for name, part in (
            (f"{kind}_none", rows.slice(0, 0)),
            (f"{kind}_one", rows.slice(0, 1)),
            (f"{kind}_all", rows),
        ):
            write(Lake("lake").histogram(name), part, query.published)
            lines += [words.format(name) for words in OF_A_TABLE]
    command = [str(bare), "-P", "-c", EVERY_COMMAND]
    ran = subprocess.run(
        command, input=json.dumps(lines), capture_output=True, text=True, check=True
    )
    done = json.loads(ran.stdout)
    assert [
        (line, said)
        for line, (code, said) in done.items()
        if code not in (0, 2) or "internal error" in said
    ] == []
    assert [
        (line, said) for line, (code, said) in done.items() if code and line.split()[0] in ANSWERS
    ] == []
    assert {said for line, (_, said) in done.items() if line.startswith("view ")} == {NEEDS_EXTRA}
    assert [said for line, (_, said) in done.items() if line.startswith("run ")] == [NEEDS_SPARK]
    assert {line.split()[0] for line in lines} == {*main.commands}
