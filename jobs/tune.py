"""`dpsql tune`: which bounds suit a query, measured on data that one may look at."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpsql.jobs.options import (
    FILE,
    compiled,
    files_by_source,
    json_option,
    query_argument,
    refuse_own_input,
    sources_option,
    writable,
)
from dpsql.jobs.terminal import ProgressBar, note, print_json, print_table
from dpsql.text import Z95

if TYPE_CHECKING:
    from dpsql.tuning import Measured, Workbench

WARNING = """\
Choose on data that you may look at: synthetic, public or last year's, or of people who agreed. A setting chosen on the private records
themselves tells about them, and no epsilon covers that."""
REASONS = {
    "over_max_groups": "over G",
    "over_max_rows_per_group": "over c",
    "over_max_rows": "over C",
}
SYMBOLS = {"max_rows_contributed": "C", "max_rows_per_group": "c", "max_groups_contributed": "G"}
FIXED = {
    "epsilon": "more is always more accurate, and less private: your choice",
    "trigger_interval_us": "fewer releases are always more accurate: your choice",
}


@click.command(short_help="recommend options, from data that you may look at")
@query_argument
@sources_option
@click.option(
    "--sample",
    "samples",
    metavar="[NAME=]FILE",
    multiple=True,
    required=True,
    help="Records like those of the stream; repeatable.",
)
@click.option(
    "--scale",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="The stream's users for each user of the sample: 20 when the sample has a twentieth of the users.",
)
@click.option(
    "--column", metavar="ALIAS", help="The aggregate whose error counts.  [default: all, equally]"
)
@click.option(
    "--goal",
    type=click.Choice(["l_1", "l_2", "keys"]),
    default="l_1",
    show_default=True,
    help="What to make best: the sum of all errors, the root of the sum of their squares, or how many keys appear.",
)
@click.option("--output", metavar="FILE.sql", type=FILE, help="Where to write the edited query.")
@json_option
def tune(
    query_file: Path,
    sources_file: Path,
    samples: tuple[str, ...],
    scale: float,
    column: str | None,
    goal: str,
    output: Path | None,
    as_json: bool,
) -> None:
    """Recommend bounds on data that you may look at: no JVM, nothing released, nothing spent.

    Shows what C (max_rows_contributed), c (max_rows_per_group), G (max_groups_contributed), epsilon and the trigger interval
    keep, drop and cost, and prints the query with the best options.

    \b
    dpsql tune conf/queries/wiki_edits.sql --sample conf/demo/wiki/part-006.parquet
    dpsql tune conf/queries/wiki_edits.sql --sample wiki=conf/demo/wiki/part-006.parquet --scale 20 --column edits --output tuned.sql
    """
    from dpsql.tuning import Workbench, around, check_tunable, edited, read_sample, search

    if output is not None:
        writable(output, "--output")
    query = compiled(query_file, sources_file)
    check_tunable(query)
    files = files_by_source(samples, query, "--sample")
    refuse_own_input(query, files.get(query.parsed.stream), "--sample", WARNING)
    with ProgressBar(may_tell=True) as bar:
        bench = Workbench(query, read_sample(query, files, bar.records), scale, column, goal)
        best = search(bench, bar.settings)
        as_written = bench.measure(bench.written)
        recommended = bench.measure(best)
        lines = {
            name: [bench.measure(setting) for setting in line] for name, line in around(bench, best)
        }
    text = edited(bench, best)
    if output is not None:
        output.write_text(text, encoding="utf-8")
    if as_json:
        print_json(_document(bench, as_written, recommended, lines, text))
        return
    _print(bench, as_written, recommended, lines)
    if output is not None:
        note(f"wrote the recommended query to {output}")
    else:
        click.echo("\nThe query with the recommended options:\n")
        click.echo(text.rstrip("\n"))


def _document(
    bench: Workbench,
    as_written: Measured,
    recommended: Measured,
    lines: dict[str, list[Measured]],
    text: str,
) -> dict[str, Any]:
    sample = bench.sample
    return {
        "warning": " ".join(WARNING.split()),
        "sample": {"users": sample.users, "records": sample.rows.num_rows, "dropped": sample.drops},
        "scale": bench.scale,
        "goal": bench.goal,
        "clamped": bench.clamped(),
        "written": asdict(as_written),
        "recommended": asdict(recommended),
        "around": {name: [asdict(each) for each in line] for name, line in lines.items()},
        "query": text,
    }


def _print(
    bench: Workbench, as_written: Measured, recommended: Measured, lines: dict[str, list[Measured]]
) -> None:
    sample = bench.sample
    scale = bench.scale
    click.echo(WARNING)
    scale_text = (
        "counted as the whole stream (--scale 1)"
        if scale == 1
        else f"counted {scale:g} times (--scale {scale:g})"
    )
    click.echo(
        f"\nSample: {sample.users:,} users, {sample.rows.num_rows:,} records, {as_written.keys:,} keys in all windows; {scale_text}."
    )
    click.echo(
        f"So the stream would have {sample.users * scale:,.0f} users. Noise does not grow with them: a wrong scale gives wrong bounds."
    )
    if scale > 1:
        click.echo(
            "Keys that no unit of the sample has cannot be seen here; in the stream they add to what is missing."
        )
    for reason, count in sample.drops.items():
        if count:
            click.echo(f"Dropped before any bound: {count:,} {reason.replace('_', ' ')}.")
    click.echo("\nExpected at each window's last trigger; a missing key counts as 0\n")
    compared = [("as written", as_written), ("recommended", recommended)]
    _table(compared, bench, with_errors=False)
    click.echo("")
    _errors(compared)
    click.echo(
        "\nOne option at a time, the rest as recommended (*). Errors are l_1 as shares of the true total"
    )
    for name, line in lines.items():
        label = name.removesuffix("_us")
        click.echo(
            f"\n{label}{f' ({SYMBOLS[name]})' if name in SYMBOLS else ''}{f': {FIXED[name]}' if name in FIXED else ''}"
        )
        marked = [
            (("* " if each.setting == recommended.setting else "  ") + _value(name, each), each)
            for each in line
        ]
        _table(marked, bench, with_errors=True)
    for alias, clamping in bench.clamped().items():
        if clamping["clamped"] > 0.0005:
            click.echo(
                f"\n{alias}: contribution_bounds_per_row clamps {clamping['clamped']:.1%} of the values, which takes {clamping['lost']:.0%} "
                "of their sum away: no option above changes that"
            )


def _table(rows: list[tuple[str, Measured]], bench: Workbench, with_errors: bool) -> None:
    """Print what each setting keeps."""
    aliases = list(rows[0][1].columns) if with_errors else []
    heads = ("", "C", "c", "G", "kept", *REASONS.values(), "keys", *aliases)
    print_table(
        heads,
        [
            (head, *_kept_cells(each, bench), *(_share(each, alias) for alias in aliases))
            for head, each in rows
        ],
        right_from=1,
    )


def _errors(rows: list[tuple[str, Measured]]) -> None:
    """Print how wrong each setting is."""
    cells = []
    for alias in rows[0][1].columns:
        for head, measured in rows:
            column = measured.columns[alias]
            further = (
                _short(error) for error in (column["l_2"], column["l_inf"], Z95 * column["stderr"])
            )
            cells.append((alias, head, f"{column['l_1']:,.0f}", _share(measured, alias), *further))
    print_table(("error of", "", "l_1", "of true", "l_2", "l_inf", "noise ±"), cells, right_from=2)


def _kept_cells(measured: Measured, bench: Workbench) -> list[str]:
    setting = measured.setting
    cells = [
        f"{setting.max_rows_contributed:,}",
        f"{setting.max_rows_per_group:,}",
        f"{setting.max_groups_contributed:,}",
    ]
    cells += [
        f"{measured.kept:.0%}",
        *(f"{measured.dropped[reason] / bench.sample.rows.num_rows:.1%}" for reason in REASONS),
    ]
    return [*cells, f"{measured.keys_kept:,.0f} of {measured.keys:,}"]


def _share(measured: Measured, alias: str) -> str:
    column = measured.columns[alias]
    return f"{column['l_1'] / max(column['true'], 1e-300):.1%}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _value(name: str, measured: Measured) -> str:
    from dpsql.times import show_duration

    value = getattr(measured.setting, name)
    if name == "trigger_interval_us":
        return f"{show_duration(value)} (T = {measured.horizon:,})"
    return f"{value:g}" if isinstance(value, float) else f"{value:,}"
