"""The command line: exit codes, what goes to stdout, that no mistake ends in a traceback, and that every example can be typed."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import dpsql
from dpsql.description import PROPERTY
from dpsql.errors import DataError
from dpsql.jobs import run_query
from dpsql.jobs.cli import main
from dpsql.lake.overruns import Overruns, write_overruns
from dpsql.lake.runs import Lake
from dpsql.local.verification import Verification
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import default_secret_path
from dpsql.streaming.progress import Summary
from tests.unit.workplace import SOURCES, SQL, histogram, place, published, records


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a query and sources.yaml where the defaults look for them."""
    monkeypatch.chdir(place(tmp_path / "work"))
    return tmp_path / "work"


def dp(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def refused(*arguments: str, says: str, code: int = 2) -> None:
    result = dp(*arguments)
    assert result.exit_code == code, result.output
    assert says in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_every_command_explains_itself() -> None:
    assert "dpsql explain" in dp("--help").stdout
    for name, command in main.commands.items():
        result = dp(name, "--help")
        assert result.exit_code == 0
        assert f"dpsql {name} " in result.stdout, f"{name}: no example"
        assert command.help


def test_explain(work: Path) -> None:
    result = dp("explain", "views.sql")
    assert result.exit_code == 0
    assert "everything that one user_id does in 1 day: epsilon 6" in result.stdout
    assert result.stderr == ""
    facts = json.loads(dp("explain", "views.sql", "--json").stdout)
    assert facts["protects"]["epsilon"] == 6.0
    assert facts["identity"] in result.stdout
    assert not default_secret_path(os.environ).exists()  # nothing is spent, nothing is made


def test_explain_starts_without_spark_duckdb_and_pandas(work: Path) -> None:
    code = "import sys; from dpsql.jobs.cli import main; main(['explain', 'views.sql'], standalone_mode=False)"
    code += "; print(list(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Query identity" in done.stdout
    for heavy in ("'pyspark'", "'duckdb'", "'pandas'", "'deltalake'"):
        assert heavy not in done.stderr


def test_a_bug_is_one_line_that_quotes_nothing(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("user 4711 was here")

    monkeypatch.setattr("dpsql.lake.runs.list_queries", broken)
    refused("status", "--lake", "lake", says="internal error (RuntimeError)", code=1)
    assert "4711" not in dp("status", "--lake", "lake").output
    assert isinstance(dp("--debug", "status", "--lake", "lake").exception, RuntimeError)


def test_show_and_list(work: Path) -> None:
    run_id = published()
    shown = dp("show", "views", "--lake", "lake").stdout
    assert "1,000 ± 7" in shown
    assert "? 2 ± 7" in shown  # smaller than its own error
    assert "-40 ± 7" in shown
    assert "NULL" in shown
    assert "\x1b" not in shown  # a key cannot command the terminal
    assert (
        "at most 8 each" in shown
        and "One user_id counts with at most 8 records in a window." in shown
    )
    assert "2 more rows: --limit 3" in dp("show", "views", "--lake", "lake", "--limit", "1").stdout
    document = json.loads(dp("show", "views", "--lake", "lake", "--json").stdout)
    assert (
        document["rows"][0]
        | {"page": "a", "views": 1000, "trigger": 1, "window_start": "2026-01-01T00:00:00Z"}
        == document["rows"][0]
    )
    assert [row["page"] for row in document["rows"]] == ["a", "b\x1b[31m", None]
    assert (
        len(
            json.loads(
                dp("show", "views", "--lake", "lake", "--window", "2026-01-01", "--json").stdout
            )["rows"]
        )
        == 3
    )
    refused(
        "show",
        "views",
        "--lake",
        "lake",
        "--window",
        "2026-01-02",
        says="no window that starts at this time",
    )
    identity = json.loads(dp("explain", "views.sql", "--json").stdout)["identity"]
    expected = [
        {
            "name": "views",
            "run_id": run_id,
            "query_identity": identity,
            "state": "published",
            "overruns": 0,
        }
    ]
    expected[0] |= {
        "source": "visits",
        "privacy_unit": ["user_id"],
        "epsilon": 6.0,
        "delta": 1e-7,
        "period_us": 86_400_000_000,
        "rows": 3,
    }
    expected[0] |= {"newest_trigger": "2026-01-02T00:00:00Z"}
    assert json.loads(dp("status", "--lake", "lake", "--json").stdout) == expected
    said = dp("status", "--lake", "lake").stdout
    assert "published" in said and "epsilon 6 per 1 day" in said and "2026-01-02 00:00:00" in said


def test_try_writes_its_own_ledger_line_before_it_reads(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}
    compared = {
        "true_histogram": histogram()[["window_start", "page", "views"]],
        "windows": 1,
        "keys": 5,
        "keys_kept": 3,
    }
    compared |= {"columns": {"views": {"l_inf": 3.5, "l_1": 4.5, "l_2": 3.6}}}
    compared |= {
        "compared": histogram().assign(
            views_true=[1500, 0, 700], views=pd.Series([1000, 2, None], dtype=object)
        )
    }
    compared |= {
        "made_of": {
            "views": {"missing": 0.318, "bounds": 0.2265, "bounds_error": 0.01, "noise": 0.003}
        }
    }
    compared["compared"] = compared["compared"].assign(
        views_stderr=[3.5, 3.5, None], dpsql_sides=["both", "both", "left_only"]
    )
    compared["compared"].attrs = {
        PROPERTY: dpsql.compile(SQL, dpsql.load_sources("conf/sources.yaml")).published.text()
    }

    def engine(
        query: dpsql.Query, inputs: dict[str, list[Path]], *, compare: bool, **given: object
    ) -> SimpleNamespace:
        seen["lines"] = Ledger.beside(default_secret_path(os.environ)).lines()
        seen["inputs"] = inputs
        table = pa.Table.from_pandas(histogram())
        return SimpleNamespace(
            histogram=histogram(),
            table=table,
            records=5,
            drops={"malformed": 2},
            misfits={"seconds": 2},
            comparison=compared if compare else None,
        )

    monkeypatch.setitem(sys.modules, "dpsql.local.feeder", SimpleNamespace(try_query=engine))
    for name in ("a.parquet", "b=c.parquet"):
        records().to_parquet(work / name)
    flags = (
        "--input a.parquet --input visits=b=c.parquet --input b=c.parquet --json --output o.parquet"
    )
    result = dp("try", "views.sql", *flags.split())
    assert result.exit_code == 0, result.output
    assert seen["inputs"] == {
        "visits": [Path("a.parquet"), Path("b=c.parquet"), Path("b=c.parquet")]
    }
    document = json.loads(result.stdout)
    assert [(line.kind, line.run_id) for line in seen["lines"]] == [("try", document["run_id"])]
    assert "drops" not in document and "comparison" not in document
    assert len(document["rows"]) == len(pd.read_parquet("o.parquet")) == 3
    text = (done := dp("try", "views.sql", "--input", "a.parquet", "--compare")).stdout
    assert "dropped: 2 malformed" in done.stderr
    assert "at most 8 each" in text and "3 of 5 groups in 1 window are released" in text
    assert [line.split()[2:] for line in text.splitlines()[2:5]] == [
        ["1", "a", "1,000", "±", "7", "1,500", "-500"],
        ["1", "NULL", "missing", "700"],
        ["1", r"b\x1b[31m", "?", "2", "±", "7", "0", "2"],
    ]
    assert (
        "views: of all that is truly there, missing keys hold 32%, the contribution bounds took about 23%, noise is about 0.3%."
        in text
    )
    assert "does not cover what the contribution bounds leave out" in text
    comparison = json.loads(
        dp("try", "views.sql", "--input", "a.parquet", "--compare", "--json").stdout
    )["comparison"]
    assert comparison["columns"] == compared["columns"]
    assert comparison["true_histogram"][0] == {
        "window_start": "2026-01-01T00:00:00Z",
        "page": "a",
        "views": 1000,
    }


@pytest.mark.parametrize(
    ("identical", "code", "says"),
    [
        (True, 0, "identical: all 3"),
        (False, 1, "NOT identical: 3 rows published, 4 recomputed, 1 "),
    ],
)
def test_verify(
    work: Path, monkeypatch: pytest.MonkeyPatch, identical: bool, code: int, says: str
) -> None:
    published()
    answer = Verification(identical, 3, 3 + (not identical), int(not identical))
    monkeypatch.setitem(
        sys.modules,
        "dpsql.local.verification",
        SimpleNamespace(verify_run=lambda *_: answer, spark_reads=lambda source: False),
    )
    result = dp("verify", "views", "--lake", "lake")
    assert result.exit_code == code
    assert result.stdout.startswith(says)
    refused("verify", "views", "--lake", "lake", "--secret-file", "none", says="--secret-file")


def test_what_a_live_run_assumes_is_shown(work: Path) -> None:
    published()
    assert json.loads(dp("show", "views", "--lake", "lake", "--json").stdout)["live"] == []
    Path("lake/private/views/live.json").write_text("{}")
    assert (
        "takes less time than the polling interval; every micro-batch did"
        in dp("show", "views", "--lake", "lake").stdout
    )
    write_overruns(Path("lake/private/views"), Overruns(3, 7_300_000, 0, 5_000_000))
    found = json.loads(dp("show", "views", "--lake", "lake", "--json").stdout)["live"]
    assert len(found) == 2 and found[1].startswith(
        "3 times the run was still busy when the next poll was due"
    )
    (query,) = json.loads(dp("status", "--lake", "lake", "--json").stdout)
    assert (query["state"], query["overruns"]) == ("stopped", 3)


def test_run_binds_the_name_and_hands_everything_over(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, object]] = []
    spark = SimpleNamespace(stop=lambda: calls.append(("stop", None)))

    def start(master: str | None, properties: object, said: Path) -> SimpleNamespace:
        calls.append(("session", (master, said.name)))
        return spark

    def job(*given: object, **named: object) -> Summary:
        calls.append(("run", {**named, "name": given[2].name}))  # type: ignore[attr-defined]
        return Summary(records=1234, triggers=2, rows=3, dropped={"malformed": 1})

    monkeypatch.setitem(sys.modules, "dpsql.streaming.session", SimpleNamespace(session=start))
    monkeypatch.setitem(
        sys.modules, "dpsql.streaming.job", SimpleNamespace(run=job, LiveOptions=lambda *_: None)
    )

    def check_fits(*_: object, is_live: bool) -> None:
        calls.append(("look", is_live))
        if (work / "refused").exists():
            raise DataError("Spark cannot read it")

    monkeypatch.setitem(
        sys.modules, "dpsql.streaming.first_look", SimpleNamespace(check_fits=check_fits)
    )
    monkeypatch.setattr(run_query, "spark_properties", lambda *_: {})
    (work / "conf/visits").mkdir()
    flags = (
        "views.sql",
        "--lake",
        "lake",
        "--until-caught-up",
        "--until",
        "1970-01-02",
        "--buckets",
        "4",
    )
    (work / "refused").touch()
    refused("run", *flags, says="Spark cannot read it")
    assert [name for name, _ in calls] == ["session", "look", "stop"]
    assert (
        not (work / "lake/private/views").exists()
        and not Ledger.beside(default_secret_path(os.environ)).lines()
    )
    (work / "refused").unlink()
    calls.clear()
    assert (result := dp("run", *flags)).exit_code == 0, result.output
    handed = {
        "name": "views",
        "until_caught_up": True,
        "until_us": 86_400_000_000,
        "buckets": (4, 4),
    }
    assert "published 2 triggers with 3 rows\n" in result.stdout
    told = json.loads(dp("run", *flags, "--json").stdout)
    assert (told["rows"], told["histogram"]) == (3, str(Lake("lake").histogram("views")))
    assert calls[:2] == [("session", ("local[*]", ".views.spark.log")), ("look", False)]
    assert [name for name, _ in calls[2:]] == ["run", "stop", "session", "run", "stop"]
    assert calls[4][1] == ("local[*]", "spark.log")
    assert handed.items() <= calls[2][1].items()  # type: ignore[attr-defined]
    (work / "views.sql").write_text(SQL.replace("epsilon = 6", "epsilon = 5"))
    calls.clear()
    refused("run", *flags, says="belongs to another query")
    assert calls == []  # refused before Spark is started


def test_ctrl_c_ends_a_run_with_success(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def job(*_: object, **__: object) -> None:
        os.kill(os.getpid(), 15)  # SIGTERM works alike

    monkeypatch.setitem(
        sys.modules,
        "dpsql.streaming.session",
        SimpleNamespace(session=lambda *_: SimpleNamespace(stop=lambda: None)),
    )
    monkeypatch.setitem(
        sys.modules, "dpsql.streaming.first_look", SimpleNamespace(check_fits=lambda *_, **__: None)
    )
    monkeypatch.setitem(
        sys.modules, "dpsql.streaming.job", SimpleNamespace(run=job, LiveOptions=lambda *_: None)
    )
    monkeypatch.setattr(run_query, "spark_properties", lambda *_: {})
    (work / "conf/visits").mkdir()
    result = dp("run", "views.sql", "--lake", "lake", "--until-caught-up")
    assert result.exit_code == 0
    assert "the same command continues from here" in result.stderr


def test_properties_are_read_as_spark_submit_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "p.conf"
    path.write_text("# note\n\nspark.a   b c\nspark.d=e=f\nspark.g : h\nspark.jars   x.jar\n")
    assert run_query.spark_properties(path) == {
        "spark.a": "b c",
        "spark.d": "e=f",
        "spark.g": "h",
        "spark.jars": "x.jar",
    }
    path.write_text("spark.a\n")
    with pytest.raises(dpsql.errors.ConfigError, match=r"p\.conf:1: not a setting"):
        run_query.spark_properties(path)


def test_budget_says_what_was_promised_and_what_a_cap_leaves(work: Path) -> None:
    refused("budget", says="--secret-file")  # no secret is made by asking
    run_id = published()
    text = dp("budget").stdout
    assert "Ledger visits: 1 run. Who is protected: user_id of visits." in text
    assert "run    views  visits: epsilon 6" in text and "No cap is declared" in text
    declared = SOURCES.replace(
        "    privacy_unit: user_id\n",
        "    privacy_unit: user_id\n    cap: {epsilon: 8, delta: 1e-6, period: 1 day}\n",
    )
    (work / "capped.yaml").write_text(declared)
    (document,) = json.loads(dp("budget", "--sources", "capped.yaml", "--json").stdout)
    assert [total["days"] for total in document["totals"]] == [1, 7, 30]
    assert document["totals"][0]["epsilon"] == pytest.approx(6.0, abs=1e-4)
    assert 0 < document["cap"]["left_epsilon"] < 8
    assert document["runs"][0]["run_id"] == run_id
    assert "may ask for up to epsilon" in dp("budget", "--sources", "capped.yaml").stdout
    (work / "conf" / "sources.yaml").unlink()
    alone = dp("budget")
    assert alone.exit_code == 0 and "caps are not known" in alone.stderr
    refused("budget", "--sources", "none.yaml", says="no such file")


def test_a_lost_ledger_is_recorded_again(work: Path) -> None:
    run_id = published()
    shutil.rmtree(default_secret_path(os.environ).parent / "ledger")
    assert "nothing was spent" in dp("budget").stdout
    for says in ("is written down again", "was there already"):
        assert (
            dp("restore", "views", "--lake", "lake", "--ledger").stdout == f"run {run_id} {says}\n"
        )
        assert [run["run_id"] for run in json.loads(dp("budget", "--json").stdout)[0]["runs"]] == [
            run_id
        ]
    assert (
        json.loads(dp("restore", "views", "--lake", "lake", "--ledger", "--json").stdout)["written"]
        is False
    )
    (work / "conf" / "sources.yaml").write_text(
        SOURCES.replace("format: parquet\n", "format: parquet\n    max_users: 5\n", 1)
    )
    refused("restore", "views", "--lake", "lake", "--ledger", says="another plan of the same query")
    refused(
        "restore",
        "views",
        "--lake",
        "lake",
        "--ledger",
        "--new-run",
        says="--ledger touches the ledger alone",
    )


def private_input(work: Path) -> Path:
    """The source's own input, readable by the local engine."""
    folder = work / "conf" / "visits"
    folder.mkdir()
    pd.concat([records(), records(user_id=["v"], page=["planted"])]).to_parquet(
        folder / "a.parquet"
    )
    return folder


def test_exact_values_of_the_private_input_are_not_shown(work: Path) -> None:
    """Not as the default input, not by a name, a link of either kind, or a folder around it; nothing is spent or made."""
    folder = private_input(work)
    (work / "link").symlink_to(folder)
    (work / "links").mkdir()
    os.link(folder / "a.parquet", work / "links" / "b.parquet")
    for given in (
        [],
        ["--input", str(folder)],
        ["--input", "link"],
        ["--input", "links"],
        ["--input", "visits=conf/visits/a.parquet"],
    ):
        refused(
            "try",
            "views.sql",
            "--compare",
            *given,
            says="this is the input of `visits` itself. It would show what single people have done",
        )
        assert "planted" not in dp("try", "views.sql", "--compare", *given).output
    assert not default_secret_path(os.environ).exists()
    assert dp("try", "views.sql").exit_code == 0  # without exact values


def test_shown_exact_values_are_kept_in_the_ledger(work: Path) -> None:
    folder = private_input(work)
    file = work / "conf" / "sources.yaml"
    file.write_text(
        file.read_text().replace(
            "    privacy_unit: user_id\n", "    privacy_unit: user_id\n    public: true\n"
        )
    )
    assert dp("try", "views.sql").exit_code == dp("try", "views.sql", "--compare").exit_code == 0
    assert [line.kind for line in Ledger.beside(default_secret_path(os.environ)).lines()] == [
        "try",
        "compare",
    ]
    text = dp("budget").stdout
    assert (
        "1 of these runs showed exact values next to the private ones (kind compare): no epsilon covers those."
        in text
    )
    assert text.count("; exact values were shown") == 1
    runs = json.loads(dp("budget", "--json").stdout)[0]["runs"]
    assert [run["exact_values_shown"] for run in runs] == [False, True]
    assert f"path {folder.resolve()}" in runs[0]["reads"]


def test_a_new_secret_is_told(work: Path) -> None:
    """A `--secret-file` that was not there is an empty budget: one line says so, once."""
    private_input(work)
    for times in range(2):
        done = dp("try", "views.sql", "--secret-file", "new/secret")
        assert done.exit_code == 0
        assert done.stderr.count(
            "new secret new/secret, new ledger: nothing is known to be spent\n"
        ) == (times == 0)
    Path("new/secret").unlink()
    assert (
        "new secret new/secret, the ledger next to it was another secret's"
        in dp("try", "views.sql", "--secret-file", "new/secret").stderr
    )
    assert (
        "2 lines were sealed with another secret"
        in dp("budget", "--secret-file", "new/secret").stderr
    )


def test_budget_tells_of_edited_and_lost_lines(work: Path) -> None:
    private_input(work)
    for _ in range(3):
        assert dp("try", "views.sql").exit_code == 0
    folder = default_secret_path(os.environ).parent / "ledger"
    newest = folder / "000003.json"
    kept = newest.read_text()
    newest.write_text(kept.replace('"kind": "try"', '"kind": "run"'))
    for command in (["budget"], ["budget", "--json"], ["try", "views.sql"]):
        refused(
            *command,
            says="edited after it was written: 000003.json; put back the original: nothing can be spent before it is known",
        )
    newest.write_text(kept[:-20])
    refused("budget", says="000003.json: not readable; put back the original file")
    newest.write_text(kept)
    for name, says in (
        ("000003.json", "lost; put back"),
        ("000002.json", "lost; put it back"),
        ("seals", "lost; put it back"),
    ):
        (folder / name).rename(work / name)
        refused("budget", says=f"{name} is {says}")
        (work / name).rename(folder / name)
    assert "3 runs" in dp("budget").stdout


EXAMPLES = [
    (name, line.strip())
    for name, command in [("", main), *main.commands.items()]
    for line in (command.help or "").splitlines()
    if line.strip().startswith("dpsql ")
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("init")
    assert CliRunner().invoke(main, ["init", str(folder)]).exit_code == 0
    return folder


def test_every_command_has_some() -> None:
    assert {line.split()[1] for _, line in EXAMPLES} >= set(main.commands)


@pytest.mark.parametrize(("of", "line"), EXAMPLES)
def test_an_example_names_what_is_there(
    made: Path, monkeypatch: pytest.MonkeyPatch, of: str, line: str
) -> None:
    """Parsed as click would: options exist, values have their types. Files and names are those that init makes and its queries get."""
    monkeypatch.chdir(made)
    _, name, *arguments = shlex.split(line)
    given = main.commands[name].make_context(name, arguments).params
    queries = {path.stem for path in (made / "conf" / "queries").glob("*.sql")}
    assert of in ("", name)
    if given.get("lake_folder") and given.get("name") and name != "run":
        assert given["name"] in queries
    for value in (
        value for argument in arguments for value in [argument.partition("=")[2] or argument]
    ):
        if value.startswith("conf/"):
            assert Path(value).exists(), value


def test_the_queries_of_init_are_all_accepted(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)
    for path in sorted((made / "conf" / "queries").glob("*.sql")):
        done = CliRunner().invoke(main, ["explain", f"conf/queries/{path.name}", "--json"])
        assert done.exit_code == 0, done.output
