"""`dpsql init`: a folder to start from, or a declaration of one's own file."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpsql.errors import ConfigError
from dpsql.files import reporting_os_errors
from dpsql.jobs.terminal import note

if TYPE_CHECKING:
    from dpsql.jobs.declaration import FileColumn, FileRecords

NEXT = """\
made {conf}: sources.yaml, queries, and a day of Wikipedia edits that are public; and notebooks about that day. Next{where}:
  dpsql explain conf/queries/demo.sql
  dpsql try conf/queries/demo.sql --until 2015-09-13 --compare
  dpsql run conf/queries/demo.sql --lake lake --until-caught-up --until 2015-09-13"""

DECLARED = """\
made conf/sources.yaml and conf/queries/first.sql. Look at both, then:
  dpsql explain conf/queries/first.sql
  dpsql try conf/queries/first.sql"""


@click.command(short_help="make a folder to start from, or declare your own file")
@click.argument("place", metavar="[DIR | FILE]", default=".", type=click.Path(path_type=Path))
@click.option("--unit", metavar="COLUMN", help="The column that names a person, of FILE.")
@click.option("--time", metavar="COLUMN", help="The column of event times, of FILE, if any.")
@click.option("--name", metavar="NAME", help="What FROM calls FILE.  [default: its name]")
def init(place: Path, unit: str | None, time: str | None, name: str | None) -> None:
    """Declare FILE in conf/sources.yaml with a budget, and write a first query; of a folder, its data files are one FILE.

    Without FILE make DIR/conf (default: here) with a sources.yaml, queries and a day of public data, to try things with; and DIR/notebooks.

    \b
    dpsql init orders.csv --unit customer
    dpsql init
    dpsql init private
    """
    from dpsql.jobs.declaration import is_data

    if place != Path() and is_data(place):
        _declare(place, unit, time, name)
    elif unit or time or name:
        raise ConfigError(f"{place}: no such file, and no folder with data files")
    else:
        _make_example(place)


def _make_example(folder: Path) -> None:
    from dpsql import jars

    conf = folder / "conf"
    notebooks = folder / "notebooks"
    for target in (conf, notebooks):
        if target.exists():
            raise ConfigError(
                f"{target} already exists: give another folder, like `dpsql init private`"
            )
    with reporting_os_errors(str(conf), ConfigError):
        conf.mkdir(parents=True)
        (conf / "sources.yaml").write_text(
            (jars.CONF / "sources.yaml").read_text().replace("    # cap:", "    cap:")
        )
        for name in ("queries", "demo"):
            shutil.copytree(
                jars.CONF / name, conf / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        shutil.copytree(
            jars.CONF.parent / "notebooks",
            notebooks,
            ignore=shutil.ignore_patterns(".ipynb_checkpoints"),
        )
    click.echo(NEXT.format(conf=conf, where="" if folder == Path() else f", in {folder}"))


def _declare(path: Path, unit: str | None, time: str | None, name: str | None) -> None:
    """Write a source and a first query; print the source where others are declared already."""
    from dpsql.jobs.declaration import HEAD, first_query, read_records, source_block, source_name
    from dpsql.sources.config import load_sources

    records = read_records(path)
    if records.nested:
        note(f"nested columns are left out: {', '.join(records.nested)}")
    is_asked = _is_terminal()
    unit = _column(records, unit or _asked_unit(records, is_asked))
    time = _column(records, time) if time else None
    records = _with_types(records, is_asked)
    name = name or source_name(path)
    conf = Path("conf")
    block = source_block(records, conf, name, unit, time)
    query = first_query(records, name, unit)
    if conf.exists():
        note("conf already exists and was not changed; add this block to its sources.yaml:")
        click.echo(block + "\n" + query)
        return
    with reporting_os_errors(str(conf), ConfigError):
        (conf / "queries").mkdir(parents=True)
        (conf / "sources.yaml").write_text(HEAD + block, encoding="utf-8")
        (conf / "queries" / "first.sql").write_text(query, encoding="utf-8")
    load_sources(conf / "sources.yaml")
    note("names and types of columns are public from now on; of the records nothing was kept")
    click.echo(DECLARED)


def _is_terminal() -> bool:
    """Tell whether somebody is there to be asked."""
    return sys.stdin.isatty()


def _column(records: FileRecords, name: str) -> str:
    """Return a column as the records spell it.

    Raises:
        ConfigError: they have none of that name.
    """
    from dpsql.sql.values import suggest

    spellings = {column.name.lower(): column.name for column in records.columns}
    if name.lower() in map(str.lower, records.nested):
        raise ConfigError(
            f"{records.path}: column `{name}` is nested, and is not read: write its fields as columns of their own"
        )
    if name.lower() not in spellings:
        hint = suggest(name, spellings.values(), f"the columns are {', '.join(spellings.values())}")
        raise ConfigError(f"{records.path} has no column `{name}`: {hint}")
    return spellings[name.lower()]


def _asked_unit(records: FileRecords, is_asked: bool) -> str:
    names = ", ".join(column.name for column in records.columns)
    if not is_asked:
        raise ConfigError(
            f"{records.path}: say which column names a person, like --unit COLUMN; the columns are {names}"
        )
    return str(click.prompt(f"Which column names a person ({names})", err=True))


def _with_types(records: FileRecords, is_asked: bool) -> FileRecords:
    """Return the records with types that were confirmed; text is STRING where nobody can be asked."""
    from dataclasses import replace

    if records.has_types:
        return records
    return replace(
        records,
        columns=tuple(
            replace(column, kind=_asked_type(column) if is_asked else "STRING")
            for column in records.columns
        ),
    )


def _asked_type(column: FileColumn) -> str:
    """Return the type that was confirmed; ask again while no value of the first records has it."""
    from dpsql.jobs.declaration import TYPES, count_values

    kinds = click.Choice(TYPES, case_sensitive=False)
    while True:
        question = f"Type of {column.name}"
        kind = str(click.prompt(question, default=column.kind, type=kinds, err=True)).upper()
        fitting, odd = count_values(column, kind) if column.sample else (1, 0)
        if odd:
            note(
                f"{column.name}: {odd} of the first {fitting + odd} values cannot be read as {kind}"
            )
        if fitting or not odd:
            return kind
