"""`dpsql ask`: how often a value came, read from a published sketch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from dpsql.errors import DataError
from jobs.options import UtcTime, json_option, lake_option, name_argument
from jobs.terminal import print_json, print_table, records

NOTE = (
    "95%: of values named before looking, collisions included. Where units are protected it is of what their contribution bounds let count: "
    "true numbers can be much larger. Nothing was spent: the sketch is public, this reads it."
)


@click.command(short_help="the count of any value, from a published sketch")
@name_argument
@click.argument("values", metavar="VALUE...", nargs=-1)
@lake_option
@click.option("--keys", "file", metavar="FILE", type=click.Path(dir_okay=False, exists=True, path_type=Path), help="Values, one a line.")
@click.option("--of", "alias", metavar="ALIAS", help="Which sketch of the query.  [default: the first]")
@click.option(
    "--window", "window_us", metavar="TIME", type=UtcTime(), help="The window that starts at TIME (UTC).  [default: the newest finished]"
)
@click.option("--to", "until_us", metavar="TIME", type=UtcTime(), help="Add up all windows from --window on that end by TIME (UTC).")
@click.option("--trigger", type=click.IntRange(1), help="As published at this trigger.  [default: the newest]")
@json_option
def ask(
    name: str,
    values: tuple[str, ...],
    lake_folder: str,
    file: Path | None,
    alias: str | None,
    window_us: int | None,
    until_us: int | None,
    trigger: int | None,
    as_json: bool,
) -> None:
    """Print how often values came, also values that were never listed, with their error; needs the public part of the lake alone.

    A value of several columns is a JSON array.

    \b
    dpsql ask top_pages /robots.txt /images/ --lake lake
    dpsql ask top_pages --keys pages.txt --window 2026-01-31 --lake lake
    """
    from dpsql.lake.runs import Lake
    from dpsql.lake.sketches import open_sketch
    from dpsql.times import timestamp

    given = [*values, *(file.read_text(encoding="utf-8").splitlines() if file else [])]
    if not given:
        raise click.UsageError("name a value, or a file of values with --keys")
    sketch = open_sketch(Lake(lake_folder), name, window_us, until_us=until_us, trigger=trigger, alias=alias)
    found = sketch.estimate(given if len(sketch.kinds) == 1 else [_parts(value) for value in given])
    found = found.assign(value=given)
    if as_json:
        window = {"window_start": timestamp(sketch.start), "window_end": timestamp(sketch.end), "trigger": sketch.trigger}
        print_json({"name": name, **window, "noise_sd": sketch.noise_sd, "rows": records(found)})
        return
    amount = str(found.columns[1])
    rows = [
        (
            row["value"],
            f"{row[amount]:,.6g}" if amount == "sum" else f"{row[amount]:,}",
            f"± {1.96 * row['stderr']:,.3g}",
            f"{row['low']:,} .. {row['high']:,}",
        )
        for row in found.to_dict("records")
    ]
    print_table(("value", amount, "noise alone", "95%"), tuple(rows), 1)
    click.echo(f"Of {timestamp(sketch.start)} to {timestamp(sketch.end)}, trigger {sketch.trigger}. {NOTE}")


def _parts(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        raise DataError('what is counted has several columns: give a value as a JSON array, like ["en", "/index.html"]') from None
