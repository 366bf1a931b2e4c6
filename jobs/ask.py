"""`dpsql ask`: how often a value came, read from a published sketch; a question in SQL, answered from published marginals; or a table fitted to them."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpsql.description import DUE, END, START
from dpsql.errors import DataError
from dpsql.jobs.options import INSTANT, json_option, lake_option, name_argument, secret_option
from dpsql.jobs.terminal import paid_output, print_json, print_table, records

if TYPE_CHECKING:
    from dpsql.lake.runs import Lake
    from dpsql.published.cubes import PublishedMarginals
    from dpsql.published.paid import PaidAnswer
    from dpsql.published.questions import QuestionAnswer

NOTE = (
    "95%: of values named before looking, collisions included. Where units are protected it is of what their contribution bounds let count: "
    "true numbers can be much larger. Nothing was spent: the sketch is public, this reads it."
)


MARGINALS_NOTE = (
    "Of questions chosen without looking at this release: who picks the largest of many cells picks its noise, too. Counted is {bound}: true "
    "numbers can be larger.{nulls} Nothing was spent: the table is public, this reads it."
)
PAID_NOTE = (
    "Counted is {bound}: true numbers can be larger.{nulls} It cost {cost} of what the run keeps for paid answers; {left} is left. The same question "
    "again costs nothing until the next trigger."
)
OFF = "Off: in units of the noise; about 1 or less where it fits as well as the truth would."


@click.command(short_help="answer questions from a published sketch or CUBE")
@name_argument
@click.argument("texts", metavar="[SQL | VALUE...]", nargs=-1)
@lake_option
@click.option(
    "--keys",
    "file",
    metavar="FILE",
    type=click.Path(dir_okay=False, exists=True, allow_dash=True, path_type=Path),
    help="Values, one a line; - reads them from stdin.",
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
    "--pay",
    is_flag=True,
    help="Pay for it where the published tables are not as exact as --max-error, from the session_share of the source.",
)
@secret_option
@click.option(
    "--synthetic",
    "synthetic",
    metavar="[DIR]",
    is_flag=False,
    flag_value="",
    help="Append a synthetic table, fitted to what a CUBE has published, to this Delta table.  [default: NAME.synthetic next to the public table]",
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
    texts: tuple[str, ...],
    lake_folder: str,
    file: Path | None,
    alias: str | None,
    window_us: int | None,
    until_us: int | None,
    trigger: int | None,
    max_error: str | None,
    pay: bool,
    secret_file: Path | None,
    synthetic: str | None,
    synthetic_rows: int | None,
    as_json: bool,
) -> None:
    """Print how often values came, also values that were never listed, with their error; needs the public part of the lake alone.

    What begins with SELECT is a question in SQL, all else a value. A value of several columns is a JSON array. Of a query with CUBE, ROLLUP or
    GROUPING SETS: one question. Its error is of a question that was chosen without looking at that release. Of the same a table (--synthetic) with
    weights of all cells that are not negative and fit the noisy tables: anyone may query it in DuckDB or Spark.

    \b
    dpsql ask wiki_top '#en.wikipedia' '#eo.wikipedia' --lake lake
    dpsql ask wiki_top '#eo.wikipedia' --window 2015-09-12 --json --lake lake
    dpsql ask wiki_cube "SELECT COUNT(*) FROM wiki_cube WHERE hour BETWEEN 8 AND 17" --max-error 5% --lake lake
    dpsql ask wiki_cube --synthetic --rows 10000 --lake lake
    """
    from dpsql.lake.runs import Lake

    lake = Lake(lake_folder)
    is_question = bool(texts and re.match(r"\s*SELECT\b", texts[0], re.IGNORECASE))
    of_sketch = (file, window_us, until_us)
    is_of_sketch = any(setting is not None for setting in of_sketch)
    if synthetic is not None or synthetic_rows is not None:
        if texts or is_of_sketch or trigger is not None:
            raise click.UsageError(
                "--synthetic makes a table of the newest trigger, and answers nothing"
            )
        _synthesize(lake, name, synthetic_rows, synthetic, alias, as_json)
        return
    if is_question:
        if len(texts) > 1:
            raise click.UsageError("ask one question; values come without one")
        if alias or is_of_sketch:
            raise click.UsageError(
                "--keys, --of, --window and --to are of a sketch: leave them away, or the question"
            )
        if pay and (max_error is None or trigger is not None):
            raise click.UsageError("--pay needs --max-error, and is of the newest trigger")
        payer = secret_file if pay else None
        with paid_output():
            answer_question(lake, name, texts[0], trigger, max_error, as_json, pay, payer)
        return
    if max_error is not None or pay:
        flag = "--pay" if max_error is None else "--max-error"
        raise click.UsageError(f"{flag} is of a question in SQL")
    selection = {"window_us": window_us, "until_us": until_us, "trigger": trigger, "alias": alias}
    _values_of_a_sketch(lake, name, [*texts, *_lines(file)], selection, as_json)


def _lines(file: Path | None) -> list[str]:
    """Return the lines of a file, or of stdin where it is named `-`."""
    if file is None:
        return []
    with click.open_file(str(file), encoding="utf-8") as stream:
        return stream.read().splitlines()


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
    as_json: bool,
    pays: bool = False,
    secret_file: Path | None = None,
) -> None:
    """Print the answer to one question, a row for each cell of its GROUP BY."""
    from dpsql.published.cubes import open_marginals
    from dpsql.sql.question import table_of
    from dpsql.times import timestamp

    if table_of(text).lower() != name.lower():
        raise DataError(
            f"the question is about `{table_of(text)}`, and {name} was named: write FROM {name}"
        )
    marginals = open_marginals(lake, name, trigger)
    paid = _paid(lake, name, text, max_error or "", secret_file) if pays else None
    answered = paid.answer if paid else _free(lake, name, marginals, text, trigger, max_error)
    source = paid.source if paid else "free"
    due = timestamp(marginals.time_us)
    if as_json:
        document = _document(name, marginals, answered, source)
        print_json(document | ({"cost": paid.cost, "left": paid.remaining} if paid else {}))
        return
    table_rows = [
        (
            *(str(row[key]) for key in answered.keys),
            f"{row[answered.column]:,.6g}",
            f"{row['stderr']:,.3g}",
            f"{row['low']:,.6g} .. {row['high']:,.6g}",
        )
        for row in answered.rows
    ]
    heads = (*answered.keys, answered.column, "stderr", "95%")
    print_table(heads, table_rows, len(answered.keys))
    nulls = ""
    if answered.with_null:
        nulls = f" `other` of {', '.join(answered.with_null)} holds NULL too, so unlike in SQL <> and NOT count it."
    limits = MARGINALS_NOTE.format(bound=marginals.bound, nulls=nulls)
    if paid and paid.source == "paid":
        shares = {"cost": f"{paid.cost:.2%}", "left": f"{paid.remaining:.2%}"}
        limits = PAID_NOTE.format(bound=marginals.bound, nulls=nulls, **shares)
    click.echo(f"At trigger {marginals.trigger} ({due}), {source}. {limits}")


def _document(
    name: str, marginals: PublishedMarginals, answered: QuestionAnswer, source: str
) -> dict[str, Any]:
    from dpsql.times import timestamp

    return {
        "name": name,
        "trigger": marginals.trigger,
        DUE: timestamp(marginals.time_us),
        "confidence": 0.95,
        "source": source,
        "rows": answered.rows,
        "counted": marginals.bound,
        "other_with_null": list(answered.with_null),
    }


def _free(
    lake: Lake,
    name: str,
    marginals: PublishedMarginals,
    text: str,
    trigger: int | None,
    max_error: str | None,
) -> QuestionAnswer:
    """Answer for nothing; at the newest trigger a refusal names the price."""
    from dpsql.published.paid import answer_or_price
    from dpsql.published.questions import answer

    if trigger is None:
        return answer_or_price(lake, name, marginals, text, max_error)
    return answer(marginals, text, max_error)


def _paid(lake: Lake, name: str, text: str, max_error: str, secret_file: Path | None) -> PaidAnswer:
    from dpsql.jobs.options import secret_and_ledger
    from dpsql.published.paid import pay

    secret, ledger = secret_and_ledger(secret_file, create=False)
    return pay(lake, name, text, max_error, secret, ledger)


def _values_of_a_sketch(
    lake: Lake, name: str, values: list[str], selection: dict[str, Any], as_json: bool
) -> None:
    from dpsql.published.sketches import open_sketch
    from dpsql.times import timestamp

    if not values:
        raise click.UsageError(
            'name a value, or a file of values with --keys, or ask a question in SQL, like "SELECT COUNT(*) FROM NAME"'
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
