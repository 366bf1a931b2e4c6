"""`dpsql ask`: how often a value came, read from a published sketch; a question in SQL, answered from published marginals; or a table fitted to them."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpsql.description import DUE, END, START
from dpsql.errors import DataError
from dpsql.jobs.options import INSTANT, json_option, lake_option, name_argument
from dpsql.jobs.terminal import print_json, print_table, records

if TYPE_CHECKING:
    from dpsql.lake.runs import Lake
    from dpsql.published.cubes import PublishedMarginals

NOTE = (
    "95%: of values named before looking, collisions included. Where units are protected it is of what their contribution bounds let count: "
    "true numbers can be much larger. Nothing was spent: the sketch is public, this reads it."
)


MARGINALS_NOTE = (
    "Of questions chosen without looking at this release: who picks the largest of many cells picks its noise, too. Counted is {bound}: true "
    "numbers can be larger.{nulls} Nothing was spent: the table is public, this reads it."
)
OFF = "Off: in units of the noise; about 1 or less where it fits as well as the truth would."
MOST_ROWS = 1_000


@click.command(short_help="free answers from what a sketch or a CUBE has published")
@name_argument
@click.argument("question", metavar="[SQL]", nargs=-1)
@lake_option
@click.option(
    "--value",
    "values",
    metavar="VALUE",
    multiple=True,
    help="How often it came, from a sketch; may be repeated.",
)
@click.option(
    "--keys",
    "file",
    metavar="FILE",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="Values, one a line.",
)
@click.option(
    "--of", "alias", metavar="ALIAS", help="Which sketch of the query.  [default: the first]"
)
@click.option(
    "--window",
    "window_us",
    **INSTANT,
    help="The window that starts at TIME (UTC).  [default: the newest finished]",
)
@click.option(
    "--to",
    "until_us",
    **INSTANT,
    help="Add up all windows from --window on that end by TIME (UTC).",
)
@click.option(
    "--trigger", type=click.IntRange(1), help="As published at this trigger.  [default: the newest]"
)
@click.option(
    "--max-error",
    metavar="ROWS|P%",
    help="Of a question in SQL: refuse an answer that is further off.",
)
@click.option(
    "--confidence",
    type=float,
    metavar="P",
    help="Of a question in SQL: of low .. high, per question.  [default: 0.95]",
)
@click.option(
    "--synthetic",
    "synthetic",
    metavar="[DIR]",
    is_flag=False,
    flag_value="",
    help="Append a synthetic table, fitted to what a CUBE has published, to this Delta table.  [default: NAME.synthetic beside the public table]",
)
@click.option(
    "--rows",
    "synthetic_rows",
    type=click.IntRange(1),
    metavar="N",
    help="Of it: N rows of equal weight.  [default: every cell, with its weight]",
)
@json_option
def ask(
    name: str,
    question: tuple[str, ...],
    lake_folder: str,
    values: tuple[str, ...],
    file: Path | None,
    alias: str | None,
    window_us: int | None,
    until_us: int | None,
    trigger: int | None,
    max_error: str | None,
    confidence: float | None,
    synthetic: str | None,
    synthetic_rows: int | None,
    as_json: bool,
) -> None:
    """Print how often values came, also values that were never listed, with their error; needs the public part of the lake alone.

    A value of several columns is a JSON array. Of a query with CUBE, ROLLUP or GROUPING SETS: one question in SQL. Its error is of a question that
    was chosen without looking at that release. Of the same a table (--synthetic) with weights of all cells that are not negative and fit the noisy
    tables: anyone may query it in DuckDB or Spark.

    \b
    dpsql ask wiki_top --value '#en.wikipedia' --value '#eo.wikipedia' --lake lake
    dpsql ask wiki_top --value '#eo.wikipedia' --window 2015-09-12 --json --lake lake
    dpsql ask wiki_cube "SELECT COUNT(*) FROM wiki_cube WHERE hour BETWEEN 8 AND 17" --max-error 5% --lake lake
    dpsql ask wiki_cube --synthetic --rows 10000 --lake lake
    """
    from dpsql.lake.runs import Lake

    if synthetic is not None or synthetic_rows is not None:
        if (
            question
            or values
            or file
            or window_us is not None
            or until_us is not None
            or trigger is not None
        ):
            raise click.UsageError(
                "--synthetic makes a table of the newest trigger, and answers nothing"
            )
        _synthesize(Lake(lake_folder), name, synthetic_rows, synthetic, alias, as_json)
        return
    if question:
        if len(question) > 1 or not re.match(r"\s*SELECT\b", question[0], re.IGNORECASE):
            raise click.UsageError(
                f'ask one question, like "SELECT COUNT(*) FROM {name} WHERE ..."; a value is asked for with --value VALUE'
            )
        if values or file or alias or window_us is not None or until_us is not None:
            raise click.UsageError(
                "--value, --keys, --of, --window and --to are of a sketch: leave them away, or the question"
            )
        answer_question(
            Lake(lake_folder),
            name,
            question[0],
            trigger,
            max_error,
            0.95 if confidence is None else confidence,
            as_json,
        )
        return
    if max_error is not None or confidence is not None:
        raise click.UsageError("--max-error and --confidence are of a question in SQL")
    selection = {"window_us": window_us, "until_us": until_us, "trigger": trigger, "alias": alias}
    _values_of_a_sketch(
        Lake(lake_folder),
        name,
        [*values, *(file.read_text(encoding="utf-8").splitlines() if file else [])],
        selection,
        as_json,
    )


def _synthesize(
    lake: Lake, name: str, rows: int | None, target: str | None, alias: str | None, as_json: bool
) -> None:
    from dpsql.lake.runs import Lake
    from dpsql.published.cubes import open_marginals, publish, synthetic_path
    from dpsql.published.cubes import synthesize as make
    from dpsql.times import timestamp
    from dpsql.view.words import FITTED

    marginals = open_marginals(lake, name)
    fitted = make(marginals, marginals.column(alias.lower() if alias else None), rows)
    path = synthetic_path(lake.histogram(name)) if not target else Lake(target).root
    is_written = publish(path, name, fitted, rows)
    if as_json:
        tables = [asdict(each) for each in fitted.misfits]
        document = {
            "name": name,
            "trigger": fitted.trigger,
            DUE: timestamp(marginals.time_us),
            "table": str(path),
            "written": is_written,
        }
        print_json(
            document | {"rows": fitted.rows.num_rows, "total": fitted.total, "tables": tables}
        )
        return
    misfit_rows = [
        (
            ", ".join(each.keys) or "(all)",
            f"{each.cells:,}",
            f"± {each.stderr:,.3g}",
            f"{each.off:.2f}",
        )
        for each in fitted.misfits
    ]
    print_table(("table", "cells", "noise", "off"), tuple(misfit_rows), 1)
    outcome = (
        f"{fitted.rows.num_rows:,} rows" if is_written else "was there already, nothing is written"
    )
    click.echo(
        f"{path}: {outcome}; {fitted.total:,.0f} {fitted.column} in all, trigger {fitted.trigger} ({timestamp(marginals.time_us)})."
    )
    click.echo(f"{OFF} {FITTED} Nothing was spent: it is made of the public table alone.")


def answer_question(
    lake: Lake,
    name: str,
    text: str,
    trigger: int | None,
    max_error: str | None,
    confidence: float,
    as_json: bool,
) -> None:
    """Print the answer to one question, a row for each cell of its GROUP BY."""
    from dpsql.published.cubes import open_marginals
    from dpsql.sql.question import per_cell, read_question, table_of
    from dpsql.times import timestamp

    if not 0 < confidence < 1:
        raise DataError(f"confidence is {confidence:g}: give a number between 0 and 1, like 0.95")
    if table_of(text).lower() != name.lower():
        raise DataError(
            f"the question is about `{table_of(text)}`, and {name} was named: write FROM {name}"
        )
    marginals = open_marginals(lake, name, trigger)
    question = read_question(text, marginals.keys)
    column = marginals.column(question.column)
    key_names = list(marginals.keys)
    names = [key_names[key] for key in question.group_keys]
    if (size := math.prod(len(marginals.keys[key]) for key in names)) > MOST_ROWS:
        raise DataError(
            f"the answer would have {size:,} rows, and at most {MOST_ROWS:,} are given: name fewer keys in GROUP BY"
        )
    largest_half = math.inf
    if max_error is not None:
        largest_half = _largest(max_error, marginals.estimate(column, [{}]).value)
    rows = [
        cell | _answer(marginals, column, products, confidence, largest_half)
        for cell, products in per_cell(question, marginals.keys)
    ]
    due = timestamp(marginals.time_us)
    if as_json:
        document = {
            "name": name,
            "trigger": marginals.trigger,
            DUE: due,
            "confidence": confidence,
            "source": "free",
            "rows": rows,
            "counted": marginals.bound,
            "other_with_null": list(question.with_null),
        }
        print_json(document)
        return
    table_rows = [
        (
            *(str(row[key]) for key in names),
            f"{row[column]:,.6g}",
            f"{row['stderr']:,.3g}",
            f"{row['low']:,.6g} .. {row['high']:,.6g}",
        )
        for row in rows
    ]
    print_table((*names, column, "stderr", f"{confidence:.4g}"), table_rows, len(names))
    nulls = ""
    if question.with_null:
        nulls = f" `other` of {', '.join(question.with_null)} holds NULL too, so unlike in SQL <> and NOT count it."
    limits = MARGINALS_NOTE.format(bound=marginals.bound, nulls=nulls)
    click.echo(f"At trigger {marginals.trigger} ({due}), free. {limits}")


def _answer(
    marginals: PublishedMarginals,
    column: str,
    products: Any,
    confidence: float,
    largest_half: float,
) -> dict[str, float]:
    """Estimate one cell of a question.

    Raises:
        DataError: its interval is wider than is wanted, or no measured table covers it.
    """
    from scipy.special import ndtri

    estimate = marginals.estimate(column, products)
    half = float(ndtri(0.5 + confidence / 2)) * estimate.stderr
    if not half <= largest_half or math.isinf(half):
        problem = (
            f"is ± {half:,.6g} at {confidence:.4g}"
            if math.isfinite(half)
            else "is not covered: no measured table has all its keys"
        )
        raise DataError(
            f"a free answer to this {problem}; allow that, or ask for more of it at once"
        )
    return {
        column: estimate.value,
        "stderr": estimate.stderr,
        "low": estimate.value - half,
        "high": estimate.value + half,
    }


def _largest(max_error: str, total: float) -> float:
    """Return what --max-error allows, in rows; a share is one of the noisy total.

    Raises:
        DataError: it is no number, or the total is not positive.
    """
    share = max_error.strip().endswith("%")
    try:
        amount = float(max_error.strip().removesuffix("%"))
    except ValueError:
        amount = math.nan
    if not 0 < amount < math.inf:
        raise DataError(
            f"--max-error is {max_error!r}: give a number of rows like 100, or a share of the total like 0.5%"
        )
    if share and not total > 0:
        raise DataError(
            "the noisy total is not positive, so a share of it means nothing: give --max-error in rows"
        )
    return amount * total / 100 if share else amount


def _values_of_a_sketch(
    lake: Lake, name: str, values: list[str], selection: dict[str, Any], as_json: bool
) -> None:
    from dpsql.published.sketches import open_sketch
    from dpsql.times import timestamp

    if not values:
        raise click.UsageError(
            "ask a question in SQL, or name a value with --value, or a file of values with --keys"
        )
    sketch = open_sketch(lake, name, **selection)
    estimates = sketch.estimate(
        values if len(sketch.shape.value) == 1 else [_parts(value) for value in values]
    )
    estimates = estimates.assign(value=values)
    if as_json:
        window = {
            START: timestamp(sketch.start),
            END: timestamp(sketch.end),
            "trigger": sketch.trigger,
        }
        print_json(
            {
                "name": name,
                **window,
                "noise_sd": sketch.noise_sd,
                "missed": sketch.shape.missed,
                "rows": records(estimates),
            }
        )
        return
    amount = str(estimates.columns[1])
    rows = []
    for row in estimates.to_dict("records"):
        number = f"{row[amount]:,.6g}" if amount == "sum" else f"{row[amount]:,}"
        rows.append(
            (
                row["value"],
                number,
                f"± {1.96 * row['stderr']:,.3g}",
                f"{row['low']:,} .. {row['high']:,}",
            )
        )
    print_table(("value", amount, "noise alone", "95%"), rows, 1)
    further = (
        f" Ends reach {sketch.shape.missed:.2%} further, for what the one-cell rule may leave out."
        if sketch.shape.missed
        else ""
    )
    click.echo(
        f"Of {timestamp(sketch.start)} to {timestamp(sketch.end)}, trigger {sketch.trigger}.{further} {NOTE}"
    )


def _parts(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        raise DataError(
            'what is counted has several columns: give a value as a JSON array, like ["en", "/index.html"]'
        ) from None
