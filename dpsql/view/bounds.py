"""What the contribution bounds of a run leave out, in words: an error bar knows nothing of it. From what a table says of itself."""

from __future__ import annotations

from dpsql.description import Protects, Published, Role
from dpsql.parsed_query import SKETCHES, AggregateFunction
from dpsql.times import duration

NOISE_ONLY = "± is 95% of the noise. It does not cover what the contribution bounds leave out."
PREDICTED = "Where a slide was not measured by itself, the value is predicted, and nobody knows how far it is off."
NOT_ONE_PERSON = "What is protected is one row, not one person."
NOISE_OF_ROWS = f"± is 95% of the noise. {NOT_ONE_PERSON}"
LISTED = (
    "± is 95% of values named before looking, noise and collisions with other values included; a value that made the list by luck is too high. "
    "Any value can be asked for: dpsql ask."
)
LEFT_OUT = "What is beyond is left out of these numbers: true ones can be much larger, above all where few units do much."
EITHER_SIDE = "Averages, deviations and quantiles are of the records that count: true ones can be larger or smaller."

FITTED = "It is biased, without a bound, so what is read from it has no error bar: `dpsql ask` gives answers that have one."


def heads(published: Published) -> dict[str, str]:
    """Per aggregate what its column's head says of the bounds: `at most 4 each`; nothing where each unit counts once."""
    run = published.protects[-1] if published.protects else None
    if run is None or not run.units:
        return {}
    found = {}
    for measure in published.measures:
        if measure.function in (
            AggregateFunction.COUNT_DISTINCT_UNIT,
            AggregateFunction.COUNT_SKETCH,
        ):  # the latter has no column
            continue
        values = "{:g} to {:g}, ".format(*measure.bounds) if measure.bounds else ""
        if measure.per_group and measure.bounds:
            found[measure.alias] = "{:,g} to {:,g} each".format(*measure.bounds)
            continue
        found[measure.alias] = f"{values}at most {_per_key(run):,} each"
    return found


def left_out(published: Published) -> tuple[str, ...]:
    """The sentences below a table of noisy numbers."""
    predicted = (PREDICTED,) if published.predicts else ()
    run = published.protects[-1] if published.protects else None
    if published.fit is not None:
        return (
            FITTED,
            *([_allowance(run, published) if run.units else NOT_ONE_PERSON] if run else []),
        )
    if run is not None and not run.units:
        return (NOISE_OF_ROWS, *predicted)
    grows = [
        measure.additive or measure.function in (AggregateFunction.COUNT_DISTINCT_UNIT, *SKETCHES)
        for measure in published.measures
    ]
    words = [LEFT_OUT] * (any(grows) or not grows) + [EITHER_SIDE] * (not all(grows))
    if run is not None:
        words.insert(0, _allowance(run, published))
    return (NOISE_ONLY, " ".join(words), *predicted)


def of_lists(published: Published) -> tuple[str, ...]:
    """The sentences below the values that a sketch lists."""
    return (LISTED, LEFT_OUT if published.protects[-1].units else NOT_ONE_PERSON)


def _per_key(run: Protects) -> int:
    """Records of one unit with one key, of which there is one where a query names none; where keys have domains no key has a bound."""
    return min(run.max_rows or 0, run.max_rows_per_group or run.max_rows or 0)


def _allowance(run: Protects, published: Published) -> str:
    """`One user_id counts with at most 8 records in a window, 4 per channel, in at most 2 values of channel.`"""
    listed = next((column.values for column in published.columns if column.role is Role.LIST), ())
    key = ", ".join(published.names(Role.KEY) or listed)
    most = (run.max_rows or 0) if key else _per_key(run)
    each = _per_key(run)
    groups = run.max_groups or most
    period = "in the whole stream"
    if run.period == "WINDOW" and (window := published.windows):
        period = (
            f"in {duration(window.size_us)}" if window.slide_us != window.size_us else "in a window"
        )
    of = "" if key == "value" else f" of {key}"
    if run.max_rows is None:
        return f"One {', '.join(run.units)} counts in at most {groups:,} value{'' if groups == 1 else 's'}{of} {period}."
    what, at_once = ("row version", " at the same time") if run.rows_end else ("record", "")
    parts = [
        f"One {', '.join(run.units)} counts with at most {most:,} {what}{'' if most == 1 else 's'} {period}"
    ]
    parts += [f"{each:,} per {key}{at_once}"] if key and each < most else []
    parts += (
        [f"in at most {groups:,} value{'' if groups == 1 else 's'}{of}"]
        if key and groups < most
        else []
    )
    return ", ".join(parts) + "."
