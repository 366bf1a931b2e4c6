"""`dpsql init`: a folder to start from."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from dpsql.errors import ConfigError
from dpsql.files import reporting_os_errors

NEXT = """\
made {conf}: sources.yaml, queries, and a day of Wikipedia edits that are public. Next{where}:
  dpsql explain conf/queries/demo.sql
  dpsql try conf/queries/demo.sql --until 2015-09-13 --compare
  dpsql run conf/queries/demo.sql --lake lake --until-caught-up --until 2015-09-13"""


@click.command(short_help="a folder with a query, sources.yaml and public data to start from")
@click.argument(
    "folder", metavar="[DIR]", default=".", type=click.Path(file_okay=False, path_type=Path)
)
def init(folder: Path) -> None:
    """Make DIR/conf (default: here) with a sources.yaml, queries and a day of public data, to try things with and to change.

    \b
    dpsql init
    dpsql init private
    """
    from dpsql import jars

    conf = folder / "conf"
    if conf.exists():
        raise ConfigError(
            f"{conf} is there already: give another folder, like `dpsql init private`"
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
    click.echo(NEXT.format(conf=conf, where="" if folder == Path() else f", in {folder}"))
