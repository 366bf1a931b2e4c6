"""Every block of the documentation that names its language runs: SQL compiles, YAML loads, Python and commands work, in the order of the page."""

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import dpsql
from dpsql.jobs.cli import main
from dpsql.sources.config import Source
from dpsql.sources.keys import SOURCE_KEYS
from tests.docs import reference
from tests.docs.test_readme import CHECKOUT, call, place, secret_file

__all__ = ["place"]
FOLDER = CHECKOUT / "docs"
LANGUAGES = {"bash", "python", "sql", "yaml"}
DECLARED = {
    "format": "parquet",
    "path": "x",
    "schema": "user_id STRING, ts TIMESTAMP",
    "event_time": "ts",
    "privacy_unit": "user_id",
}
"""What a fragment of sources.yaml leaves out."""

HOW_TO = sorted((FOLDER / "howto").glob("*.md"))
"""Run in `tests/long/docs`, as one of them needs what another one made."""
MOST_WORDS = 350


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of every fenced block, indented ones too, in order."""
    found = re.findall(
        r"^( *)```(\w*)\n(.*?)^\1```$",
        page.read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )
    return [(language, textwrap.dedent(text)) for _, language, text in found]


PAGES = sorted(FOLDER.rglob("*.md"))
WITH_PROGRAMS = [
    page for page in PAGES if {language for language, _ in blocks(page)} & {"bash", "python"}
]


def test_every_block_is_of_a_kind_that_is_run() -> None:
    assert {language for page in PAGES for language, _ in blocks(page)} <= {*LANGUAGES, ""}
    assert {page.name for page in WITH_PROGRAMS} >= {
        "tutorial.md",
        "own-program.md",
        "reference.md",
    }


GENERATED = re.compile(
    r"<!-- ([\w-]+): (?:begin|python -m [\w.]+) -->.*?<!-- (?:\1: end|end of \1) -->", re.DOTALL
)
MOST_WRITTEN = {"docs/privacy": 31_000, "all else": 25_000}


def test_pages_do_not_grow_beyond_what_people_read() -> None:
    """Words that people wrote: tables that a command writes are left out."""
    others = (
        CHECKOUT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY")
    )
    written = dict.fromkeys(MOST_WRITTEN, 0)
    for page in (*others, *PAGES):
        place = "docs/privacy" if page.parent.name == "privacy" else "all else"
        written[place] += len(GENERATED.sub("", page.read_text(encoding="utf-8")).split())
    assert {place: words for place, words in written.items() if words > MOST_WRITTEN[place]} == {}
    assert min(written.values()) > 20_000


@pytest.mark.parametrize("page", HOW_TO, ids=lambda page: page.stem)
def test_a_how_to_is_short_and_asks_one_question(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(text.split()) <= MOST_WORDS
    (head,) = re.findall(
        r"^#+ (.*)$", re.sub(r"(?ms)^ *```.*?^ *```", "", text), flags=re.MULTILINE
    )
    assert head.endswith("?")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sql_compiles_and_yaml_loads(page: Path, tmp_path: Path) -> None:
    sources = dpsql.load_sources(CHECKOUT / "conf" / "sources.yaml")
    for language, text in blocks(page):
        if language == "sql":
            assert dpsql.compile(text, sources, page.name).plan.identity
        if language == "yaml":
            assert loaded(text, tmp_path)


def loaded(text: str, folder: Path) -> dpsql.Sources:
    given: dict[str, Any] = yaml.safe_load(text)
    named = given.get("sources", given)
    for name, source in named.items():
        if "format" not in source:
            named[name] = {**DECLARED, **source}
    file = folder / "sources.yaml"
    file.write_text(yaml.safe_dump({"sources": named}))
    return dpsql.load_sources(file)


def run(page: Path, place: Path) -> str:
    """Every command and program of a page, in order, in one folder. Returns what they printed."""
    said = ""
    for language, text in blocks(page):
        for words in programs(page, language, text):
            code, printed, told = started(words, place)
            assert code == 0, f"{page.name}\n{text}\n{told}"
            if words[0] == "-m":  # a program may start a Spark of its own, which says what it likes
                assert not re.search("warning|log level|Traceback", told, re.IGNORECASE), told
            said += f"{printed}\n"
    return said


def started(words: list[str], place: Path) -> tuple[int, str, str]:
    """A process of its own for a program and for what starts Spark; other commands are quicker here, where everything is imported."""
    if words[0] == "-m" and words[2] != "run":
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(place)
            patch.setenv("DPSQL_SECRET_FILE", secret_file(place))
            here = CliRunner().invoke(main, words[2:])
        return here.exit_code, here.stdout, f"{here.stderr}{here.exception or ''}"
    done = call(place, *words)
    return done.returncode, done.stdout, done.stderr


def programs(page: Path, language: str, text: str) -> Iterator[list[str]]:
    """The arguments of Python for each command of a block. spark-submit is run before a release (CONTRIBUTING.md); `test_readme.py` compares
    its flags."""
    if language == "python":
        yield ["-W", "error::DeprecationWarning:__main__", "-c", text]
    for words in (
        shlex.split(line, comments=True) for line in text.splitlines() if language == "bash"
    ):
        if words and words[0] != "spark-submit":
            assert words[0] == "dpsql", f"{page.name}: only dpsql is run here, not {words[0]}"
            yield ["-m", "dpsql.jobs.cli", *words[1:]]


def test_the_reference_says_what_the_code_does() -> None:
    page = reference.REFERENCE.read_text(encoding="utf-8")
    assert reference.written(page) == page, "python -m tests.docs.reference"


@pytest.mark.parametrize(
    "page",
    [page for page in WITH_PROGRAMS if page.name != "tutorial.md" and page not in HOW_TO],
    ids=lambda page: page.name,
)
def test_programs_run(page: Path, place: Path) -> None:
    assert run(page, place)


def test_the_tutorial_runs(place: Path) -> None:
    said = run(FOLDER / "tutorial.md", place)
    assert "identical: all" in said and "channels clearly have more than 100 editors" in said
    assert (place / "demo.html").exists()


def test_the_reference_has_every_command_and_flag() -> None:
    lines = re.findall(
        r"^\| `(\w+)[^`]*` \| (.*) \|$",
        (FOLDER / "reference.md").read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    written = {
        name: set(re.findall(r"--[\w-]+", flags)) for name, flags in lines if name in main.commands
    }
    known = {
        name: {
            flag for parameter in command.params for flag in parameter.opts if flag.startswith("--")
        }
        for name, command in main.commands.items()
    }
    assert written == known


def test_the_reference_has_every_key_of_sources_and_every_name_of_python() -> None:
    fields_of_a_source = {each.name.removesuffix("_us") for each in fields(Source)}
    not_written = {"name", "uncapped", "event_cap", "event_time_unit", "of_frame"}
    assert {*SOURCE_KEYS} == fields_of_a_source - not_written
    text = (FOLDER / "reference.md").read_text(encoding="utf-8")
    assert [
        name
        for name in ("compile", "latest", "load_sources", "query", "run_local", "start")
        if f"`dpsql.{name}(" not in text
    ] == []


def test_every_page_is_in_the_index() -> None:
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [
        page.name
        for page in PAGES
        if page.name != "README.md" and f"({page.relative_to(FOLDER)})" not in index
    ] == []
