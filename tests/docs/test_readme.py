"""Everything that the README shows runs: its SQL compiles and its commands work, in order; and what pages name is there."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import dpsql
from dpsql.local.feeder import try_query
from dpsql.privacy.secret import Secret
from dpsql.text import Z95

CHECKOUT = Path(__file__).resolve().parents[2]
README = CHECKOUT / "README.md"
REFERENCE = CHECKOUT / "docs" / "reference.md"
PROOFS = sorted((CHECKOUT / "docs" / "privacy").glob("*.md"))
PAGES = (
    README,
    *sorted((CHECKOUT / "docs").glob("*.md")),
    *sorted((CHECKOUT / "docs" / "howto").glob("*.md")),
    *PROOFS,
    CHECKOUT / "CONTRIBUTING.md",
    CHECKOUT / "CHANGELOG.md",
    CHECKOUT / "SECURITY.md",
)
NEEDS_SPARK = ("run", "show", "status", "verify")
"""Commands that start Spark, or read what such a command has left."""


def blocks(language: str, page: Path = README) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```$",
        page.read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )


def commands(page: Path = README) -> list[list[str]]:
    """The words of every line of the bash blocks; comments are left out."""
    return [
        words
        for block in blocks("bash", page)
        for line in block.splitlines()
        if (words := shlex.split(line, comments=True))
    ]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with what the README finds in a checkout."""
    shutil.copytree(CHECKOUT / "conf", tmp_path / "conf")
    return tmp_path


def secret_file(place: Path) -> str:
    return str(place / "secrets" / "secret")


def call(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # a job this small is over before the optimising compiler has paid for itself
    quick = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    environment = (
        os.environ | quick | {"PYTHONPATH": str(CHECKOUT), "DPSQL_SECRET_FILE": secret_file(place)}
    )
    return subprocess.run(
        [sys.executable, *words],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


def dpsql_commands(spark: bool) -> list[list[str]]:
    """Those of the demo; the first two, of a file of one's own, have a test of their own."""
    return [
        words[1:]
        for words in commands()
        if words[0] == "dpsql" and (words[1] in NEEDS_SPARK) == spark
    ][0 if spark else 2 :]


@pytest.mark.parametrize("text", blocks("sql"))
def test_sql_compiles(text: str) -> None:
    assert dpsql.compile(
        text, dpsql.load_sources(CHECKOUT / "conf" / "sources.yaml"), "README.md"
    ).plan.identity


def test_the_readme_is_one_screen() -> None:
    assert len(README.read_text(encoding="utf-8").split()) <= 550


@pytest.fixture(scope="module")
def editors() -> pd.Series:
    """Count the editors of each channel of the demo's day, without limits."""
    return pd.read_parquet(CHECKOUT / "conf/demo/wiki").groupby("key")["user_id"].nunique()


def test_rows_of_the_readme_are_true(editors: pd.Series) -> None:
    """Catches: a row of another day or query, and one that its own error bar does not hold."""
    text = README.read_text(encoding="utf-8").replace(",", "")
    rows = re.findall(r"24 +(#\S+) +(\d+) ± (\d+) +(\d+) +(-?\d+)$", text, flags=re.MULTILINE)
    assert [channel for channel, *_ in rows] == list(editors.nlargest(len(rows)).index) != []
    for channel, *numbers in rows:
        value, bar, true, off = map(int, numbers)
        assert true == editors[channel] and off == value - true and abs(off) <= bar


def test_bars_of_the_readme_query_hold_all_editors(editors: pd.Series) -> None:
    """Catches: limits so small, or noise so large, that the number of all editors is often outside of the printed bars."""
    sources = dpsql.load_sources(CHECKOUT / "conf" / "sources.yaml")
    query = dpsql.compile((CHECKOUT / "conf/queries/demo.sql").read_text(), sources)
    is_held = []
    for i in range(20):
        secret = Secret(bytes([i]) * 32)
        rows = try_query(query, {}, run_id=f"{i:032x}", secret=secret).histogram
        shown = rows[rows["trigger"] == 24]
        bars = Z95 * shown["editors_stderr"]
        off = shown["editors"] - editors[shown["channel"].astype(str)].to_numpy()
        is_held += list(off.abs() <= bars)
        assert len(shown) >= 20
    assert sum(is_held) >= 0.9 * len(is_held)


def test_the_first_query_is_the_demo() -> None:
    sources = dpsql.load_sources(CHECKOUT / "conf" / "sources.yaml")
    demo = (CHECKOUT / "conf" / "queries" / "demo.sql").read_text()
    assert dpsql.compile(blocks("sql")[0], sources).plan == dpsql.compile(demo, sources).plan


def test_the_first_commands_count_people_of_ones_own_file(tmp_path: Path) -> None:
    rows = [f"c{i},{('acme', 'zeta')[i % 2]},{i % 5}.5" for i in range(4000)]
    (tmp_path / "reviews.csv").write_text("\n".join(["reviewer,vendor,stars", *rows]))
    first, second = [words[1:] for words in commands() if words[0] == "dpsql"][:2]
    for words in (first, second):
        done = call(tmp_path, "-m", "dpsql.jobs.cli", *words)
        assert done.returncode == 0, done.stderr
    people = re.findall(r"^(?:acme|zeta) +([\d,]+) ± (\d+)$", done.stdout, flags=re.MULTILINE)
    assert len(people) == 2, done.stdout
    assert all(abs(int(n.replace(",", "")) - 2000) < 3 * int(error) for n, error in people)


@pytest.mark.parametrize("words", dpsql_commands(spark=False), ids=" ".join)
def test_commands_without_spark(words: list[str], place: Path) -> None:
    done = call(place, "-m", "dpsql.jobs.cli", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_commands_with_spark_are_those_of_the_tutorial() -> None:
    """Which `test_the_tutorial_runs` runs."""
    tutorial = (CHECKOUT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    run = [
        shlex.split(line, comments=True)
        for line in re.findall(r"^dpsql .*$", tutorial, flags=re.MULTILINE)
    ]
    assert [words for words in dpsql_commands(spark=True) if ["dpsql", *words] not in run] == []


def test_flags_of_spark_submit_are_those_of_the_script() -> None:
    """Its flags are compared with the script's help; the block itself is run before a release (CONTRIBUTING.md)."""
    from click.testing import CliRunner

    from dpsql.jobs.run_query import main

    known = CliRunner().invoke(main, ["--help"]).output
    submitted = [words for words in commands(REFERENCE) if words[0] == "spark-submit"]
    assert submitted
    for words in submitted:
        script = words.index("jobs/run_query.py")
        assert (CHECKOUT / words[script + 1]).exists()
        assert [
            flag for flag in words[script:] if flag.startswith("--") and f"{flag} " not in known
        ] == []


def test_make_targets_exist() -> None:
    makefile = (CHECKOUT / "Makefile").read_text()
    targets = {words[1] for words in commands() if words[0] == "make"} | set(
        re.findall(r"`make ([a-z-]+)`", "".join(p.read_text() for p in PAGES))
    )
    assert {target for target in targets if f"\n{target}:" not in makefile} == set()


def test_every_option_is_explained() -> None:
    from dpsql.mechanisms.registry import MECHANISMS
    from dpsql.sql.parse import options_of

    text = REFERENCE.read_text()
    options = options_of(MECHANISMS)
    assert [option.name for option in options if f"`{option.example}`" not in text] == []
    assert len(options) <= 17  # one more has to replace one


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name) if name else page
        assert file.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert anchor in {
                re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads
            }, target


@pytest.mark.parametrize(
    "page", [*PROOFS, CHECKOUT / "docs" / "architecture.md"], ids=lambda page: page.name
)
def test_what_the_pages_name_is_there(page: Path) -> None:
    """Modules, files, functions and tests that proofs and architecture point to."""
    text = page.read_text(encoding="utf-8")
    files = {
        name.replace("NAME", "histogram")
        for name in re.findall(r"`((?:[\w-]+/)+\w+\.(?:py|html|css|js))`", text)
    }
    assert (
        sorted(
            name
            for name in files
            if not (CHECKOUT / name).exists() and not (CHECKOUT / "dpsql" / name).exists()
        )
        == []
    )
    tests = "\n".join(
        path.read_text(encoding="utf-8") for path in (CHECKOUT / "tests").rglob("test_*.py")
    )
    assert [
        name for name in set(re.findall(r"`(test_\w+)`", text)) if f"def {name}(" not in tests
    ] == []
    assert [
        name
        for name in set(re.findall(r"`(tests/[\w/]+\.py)`", text))
        if not (CHECKOUT / name).exists()
    ] == []
    for file, named in re.findall(
        r"`(tests/[\w/]+\.py)`:((?:\s+`test_\w+`(?:\s+\([^)]*\))?,?)+)", text
    ):
        there = (CHECKOUT / file).read_text(encoding="utf-8")
        assert [
            name for name in re.findall(r"`(test_\w+)`", named) if f"def {name}(" not in there
        ] == [], file
    for name in set(re.findall(r"`((?:udfs|dpsql)(?:\.\w+)+)`", text)):
        assert _found(name.split(".")), name


def test_every_theorem_is_on_one_page_and_what_points_to_it_finds_it() -> None:
    """A number is given once in all pages; a theorem names code and tests; "privacy/PAGE.md, theorem N" in code and docs is on PAGE."""
    heads = [(page.stem, *head) for page in PROOFS for head in _theorems(page)]
    assert sorted(int(number) for _, number, _ in heads) == list(range(1, len(heads) + 1))
    assert [
        number
        for _, number, text in heads
        if "*Implemented in*" not in text or "`test_" not in text
    ] == []
    places = {(page, number) for page, number, _ in heads}
    pointers = set()
    for file in (
        *PAGES,
        *(
            path
            for room in ("dpsql", "udfs", "jobs")
            for path in sorted((CHECKOUT / room).rglob("*.py"))
        ),
    ):
        pointers |= {
            *re.findall(r"privacy/(\w+)\.md,?\s+theorem\s+(\d+)", file.read_text(encoding="utf-8"))
        }
    assert pointers and pointers <= places, pointers - places


def _theorems(page: Path) -> list[tuple[str, str]]:
    """Number and text of each."""
    return re.findall(
        r"^## Theorem (\d+):(.*?)(?=^## |\Z)",
        page.read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )


def _found(parts: list[str]) -> bool:
    """A package, a module, or a name (of a name) defined in one; nothing is imported."""
    for cut in range(len(parts), 0, -1):
        path = CHECKOUT.joinpath(*parts[:cut])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file.exists():
            source = file.read_text(encoding="utf-8")
            return all(
                re.search(
                    rf"\b(def|class|import|as) {part}\b|^{part}\b", source, flags=re.MULTILINE
                )
                for part in parts[cut:]
            )
    return False
