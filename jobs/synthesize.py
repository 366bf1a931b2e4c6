"""`dpsql synthesize`: a table that may be queried as if it were data, fitted to what a CUBE has published."""

from __future__ import annotations

from dataclasses import asdict

import click

from dpsql.errors import DataError
from dpsql.jobs.options import json_option, lake_option, name_argument
from dpsql.jobs.terminal import print_json, print_table

NOTE = (
    "Off: in units of the noise; about 1 or less where it fits as well as the truth would. It is biased, without a bound, so what is read from it "
    "has no error bar: `dpsql ask` gives answers that have one. Nothing was spent: it is made of the public table alone."
)


@click.command(short_help="a synthetic table, fitted to what a CUBE has published")
@name_argument
@lake_option
@click.option("--rows", type=click.IntRange(1), metavar="N", help="Draw N rows of equal weight.  [default: every cell, with its weight]")
@click.option("--out", metavar="DIR", help="The Delta table to append to.  [default: NAME.synthetic beside the public table]")
@click.option("--of", "alias", metavar="ALIAS", help="Which count of the query.  [default: the only one]")
@json_option
def synthesize(name: str, lake_folder: str, rows: int | None, out: str | None, alias: str | None, as_json: bool) -> None:
    """Publish a synthetic table of the newest trigger: weights of all cells that are not negative and fit the noisy tables of a query with CUBE,
    ROLLUP or GROUPING SETS. Anyone may query it in DuckDB or Spark; counts are sums of the weights. Needs the public part of the lake alone.

    \b
    dpsql synthesize wiki_cube --lake lake
    dpsql synthesize wiki_cube --rows 10000 --out wiki_rows --lake lake
    """
    from dpsql.lake.marginals import open_marginals, publishes_marginals
    from dpsql.lake.runs import Lake
    from dpsql.lake.synthetic import publish, synthetic_path
    from dpsql.lake.synthetic import synthesize as make
    from dpsql.times import timestamp

    lake = Lake(lake_folder)
    if lake.histogram(name).exists() and not publishes_marginals(lake, name):
        raise DataError(f"{name} publishes no sets of keys: a synthetic table is of a query with CUBE, ROLLUP or GROUPING SETS")
    found = open_marginals(lake, name)
    made = make(found, found.column(alias.lower() if alias else None), rows)
    path = synthetic_path(lake.histogram(name)) if out is None else Lake(out).root
    written = publish(path, name, made, rows)
    if as_json:
        tables = [asdict(each) for each in made.misfits]
        given = {"name": name, "trigger": made.trigger, "trigger_time": timestamp(found.time_us), "table": str(path), "written": written}
        print_json(given | {"rows": made.rows.num_rows, "total": made.total, "tables": tables})
        return
    shown = [(", ".join(each.keys) or "(all)", f"{each.cells:,}", f"± {each.stderr:,.3g}", f"{each.off:.2f}") for each in made.misfits]
    print_table(("table", "cells", "noise", "off"), tuple(shown), 1)
    done = f"{made.rows.num_rows:,} rows" if written else "was there already, nothing is written"
    click.echo(f"{path}: {done}; {made.total:,.0f} {made.column} in all, trigger {made.trigger} ({timestamp(found.time_us)}). {NOTE}")
