"""How values, limits and empty tables are said to people: on a terminal, in charts and on the page."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from numbers import Integral
from typing import Any

from dpsql.description import Column, Protects, Published, Role, Rows
from dpsql.parsed_query import SKETCHES, AggregateFunction
from dpsql.published.words import (
    AT_END,
    MOST_RANK_ERROR,
    TOO_FEW,
    appears,
    has_limits,
    is_rough,
    null_of,
    silence,
)
from dpsql.text import Z95
from dpsql.times import EPOCH, duration

# How values are written for people: on a terminal, in charts and on the page of `dpsql view`.

UNITS = ((1_000_000_000, " bn"), (1_000_000, " M"), (1, ""))
MOST_DECIMALS = 6
ZERO_WIDTH_NON_JOINER = "\u200c"
ZERO_WIDTH_JOINER = "\u200d"
VIRAMA = 9
"""Combining class of signs that take a consonant's vowel away."""
TIME = "%Y-%m-%d %H:%M"
"""UTC."""


def printable(value: Any) -> str:
    """Return a key as text: control characters are shown, not obeyed, but for joiners that a word is spelled with."""
    if isinstance(value, bytes):
        return "0x" + value.hex()
    text = str(value)
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or _is_spelling(text, i) else c.encode("unicode_escape").decode()
        for i, c in enumerate(text)
    )


def _is_spelling(text: str, place: int) -> bool:
    """Tell whether a character is a joiner that changes how the letters at both sides are written; elsewhere two keys would look the same.

    Source: RFC 5892, A.1 and A.2; letters of both sides are of one script here. Further, Malayalam ends words with a joiner, and Bengali
    and Kannada have one before the virama.
    """
    joiner = text[place]
    if joiner not in (ZERO_WIDTH_NON_JOINER, ZERO_WIDTH_JOINER) or place == 0:
        return False
    previous = text[place - 1]
    following = text[place + 1 : place + 2] or " "
    script = _script(previous)
    if script == "ARABIC":
        can_join = _has_form(previous, "INITIAL") and _has_form(following, "FINAL")
        return joiner == ZERO_WIDTH_NON_JOINER and can_join
    has_one_script = script == _script(following)
    if _is_virama(following):
        return joiner == ZERO_WIDTH_JOINER and previous.isalpha() and has_one_script
    is_after_virama = _is_virama(previous) and _script(text[: place - 1][-1:]) == script
    is_inside = has_one_script and following.isalpha()
    can_end = script == "MALAYALAM" and joiner == ZERO_WIDTH_JOINER
    is_at_end = can_end and following.isprintable() and not following.isalnum()
    return is_after_virama and (is_inside or is_at_end)


def _is_virama(character: str) -> bool:
    return unicodedata.combining(character) == VIRAMA


def _script(character: str) -> str:
    """Return the first word of a letter's or mark's name; nothing for all others."""
    is_part_of_word = character != "" and unicodedata.category(character)[0] in "LM"
    return unicodedata.name(character, "").partition(" ")[0] if is_part_of_word else ""


def _has_form(letter: str, form: str) -> bool:
    """Tell whether an Arabic letter is written otherwise at this place of a word, where it joins its neighbour."""
    try:
        unicodedata.lookup(f"{unicodedata.name(letter, '')} {form} FORM")
    except KeyError:
        return False
    return True


def absent(value: Any) -> bool:
    """Tell whether a value is NULL, NaN or NaT; the last two differ from themselves."""
    return value is None or bool(value != value)


def key_text(row: Mapping[Any, Any], name: str, published: Published) -> str:
    """Return a row's key; `all` where the row is not grouped by it. (Keys with domains, of which such tables are, have no NULL of their own.)"""
    if absent(row[name]):
        return "all" if published.sets else "NULL"
    return printable(row[name])


def measured(
    value: Any, stderr: float, null: tuple[str, str] = ("NULL", "not measured")
) -> tuple[str, bool]:
    """Return `1,203 ± 76`, to the second significant digit of its 95% error, and whether the value is smaller than that error. A value without an error
    was not measured: it is `1,203, predicted`, and passes for no more. `null`: what is said of either (`dpsql.published.words.null_of`).

    >>> measured(0.03124, 0.00021)[0], measured(521_887.3, 9_684)[0], measured(26_213_456, 3_776_000)[0]
    ('0.03124 ± 0.00041', '522,000 ± 19,000', '26.2 M ± 7.4 M')
    """
    if absent(value):
        return null[0], True
    if absent(stderr):
        return f"{value:,.6g}, {null[1]}", True
    error = Z95 * stderr
    is_count = isinstance(value, Integral)
    return f"{amount(value, error, is_count)} ± {amount(error, error, is_count)}", bool(
        abs(value) < error * (1 - 1e-9)
    )


def says_nothing(row: Mapping[Any, Any], alias: str, published: Published) -> bool:
    """Tell whether a row's 95% interval is all that is possible: a value in its middle would be read as one."""
    column, limit = silence(alias, published)
    return not absent(row[column]) and bool(row[column] >= limit)


def aggregate_text(row: Mapping[Any, Any], alias: str, published: Published) -> tuple[str, bool]:
    """Return what `measured` returns of an aggregate; too few to say where its error is all that is possible."""
    if says_nothing(row, alias, published):
        return TOO_FEW, True
    return measured(row[alias], row[published.stderr(alias)], null_of(alias, published))


def marked(row: Mapping[Any, Any], alias: str, published: Published) -> str:
    """Return the text of an aggregate, with a `?` before what is smaller than its own error."""
    text, small = aggregate_text(row, alias, published)
    return f"? {text}" if small and "±" in text else text


def quantiles_text(
    values: Any, rank_stderr: float, null: str, bounds: tuple[float, float] | None = None
) -> str:
    """Return quantiles as in `0, 12.5, 60; ranks ± 0.041 (share of rows)`: 95% of what their ranks are off.

    Each has the digits that the values at its rank plus and minus that error allow. A `?` comes first where the error is more than half a step
    from one rank to the next, which of a single quantile is that of quartiles.

    Args:
        values: an array from bound to bound, or one quantile.
        rank_stderr: of the ranks.
        null: text of a NULL.
        bounds: of the values of one quantile, between which values are taken to lie evenly.
    """
    if absent(values) or absent(rank_stderr):
        return null
    rank_error = Z95 * rank_stderr
    if rank_error >= MOST_RANK_ERROR:
        return TOO_FEW
    texts = quantile_texts(values, rank_error, bounds)
    mark = "? " if is_rough(values, rank_error) else ""
    return f"{mark}{', '.join(texts)}; ranks ± {rank_error:.2g} (share of rows)"


def quantile_texts(
    values: Any, rank_error: float, bounds: tuple[float, float] | None = None
) -> list[str]:
    """Return each quantile with the digits that its rank allows; arguments as for `quantiles_text`."""
    import numpy as np  # slow to import, and `dpsql status` has no quantiles

    from dpsql.udfs.measure.quantiles import LEAVES

    is_array = isinstance(values, Iterable)
    quantiles = np.array(values if is_array else [values], np.float64)
    low, high = (quantiles[0], quantiles[-1]) if is_array else bounds or (0.0, 0.0)
    errors = np.array([(high - low) * rank_error])
    if is_array:
        ranks = np.linspace(0, 1, len(quantiles))
        low_values, high_values = (
            np.interp(ranks + side * rank_error, ranks, quantiles) for side in (-1, 1)
        )
        errors = np.maximum(high_values - quantiles, quantiles - low_values)
    errors = np.maximum(errors, (high - low) / LEAVES)
    if is_array:
        errors[[0, -1]] = 0.0  # the bounds, which are declared
    return [*map(amount, quantiles.tolist(), errors.tolist())]


def text_of(row: Mapping[Any, Any], column: Column, published: Published) -> str:
    """Return what a row has in a column, with its error; a real number beside a value has the digits of that error, for it is no better."""
    value = row[column.name]
    alias = column.of or ""
    if column.role is not Role.VALUE:
        is_count = isinstance(row[alias], Integral)
        return (
            str(value)
            if isinstance(value, Integral | str)
            else amount(value, Z95 * row[published.stderr(alias)], is_count)
        )
    if ranks := published.columns_of(alias, Role.RANK_STDERR):
        null = null_of_quantiles(row, published)
        return quantiles_text(value, row[ranks[0]], null, bounds_of(alias, published))
    if alias in published.fitted:
        return f"{value:,.6g}"
    return marked(row, alias, published)


def null_of_quantiles(row: Mapping[Any, Any], published: Published) -> str:
    """Return what is said where there are no quantiles: too few rows, or the window goes on."""
    early = published.windows is not None and row["trigger"] < published.windows.triggers
    return AT_END if early else TOO_FEW


def bounds_of(alias: str, published: Published) -> tuple[float, float] | None:
    """Return what the values of an aggregate are clamped to."""
    ranges = (measure.ranges for measure in published.measures if measure.alias == alias)
    return next((each[0] for each in ranges if each), None)


def amount(value: float, error: float, is_count: bool = False) -> str:
    """Return a number to the second significant digit of its error; from an error of 100,000 on in millions.

    Args:
        value: the number.
        error: of 95%.
        is_count: it is a count, which has no decimals, however small its error.
    """
    if not (math.isfinite(value) and math.isfinite(error) and error > 0):
        return f"{value:,.6g}"
    decimals = 1 - math.floor(math.log10(error))
    if is_count:
        decimals = min(decimals, 0)
    if decimals > MOST_DECIMALS:
        return f"{value:.2g}"
    size, name = next((size, name) for size, name in UNITS if error >= size / 10 or size == 1)
    return f"{(round(float(value), decimals) + 0.0) / size:,.{max(0, decimals + round(math.log10(size)))}f}{name}"


def scale_texts(low: float, high: float) -> tuple[str, str]:
    """Return the ends of a scale, which may be a few percent off."""
    return amount(low, (high - low) / 20), amount(high, (high - low) / 20)


# What the contribution bounds of a run leave out, in words: an error bar knows nothing of it.
# From what a table says of itself.

NOISE_ALONE = "± is 95% of the noise."
NOISE_ONLY = f"{NOISE_ALONE} It does not cover what the contribution bounds leave out."
PREDICTED = (
    "Where a slide was not measured by itself, the value is predicted, and its error is unknown."
)
NOT_ONE_PERSON = "What is protected is one row, not one person."
NOISE_OF_ROWS = f"{NOISE_ALONE} {NOT_ONE_PERSON}"
LISTED = (
    "± is 95% of values named before looking, noise and collisions with other values included; a value that made the list by luck is too high. "
    "Any value can be asked for: dpsql ask."
)
LEFT_OUT = "What is beyond is left out of these numbers: true ones can be much larger, above all where few units do much."
EITHER_SIDE = "Averages, deviations and quantiles are of the records that count: true ones can be larger or smaller."

NOISE_OF_FIGURES = "± is 95% of the noise. What one unit adds to a figure has a limit, too: true ones can be larger."

FITTED = "It is biased, without a bound, so what is read from it has no error bar: `dpsql ask` gives answers that have one."


def heads(published: Published) -> dict[str, str]:
    """Return, per aggregate, what its column's head says of the bounds: `at most 4 each`; nothing where each unit counts once."""
    run = published.protects[-1] if published.protects else None
    if run is None or not run.units:
        return {}
    caps = {}
    for measure in published.measures:
        if measure.function in (
            AggregateFunction.COUNT_DISTINCT_UNIT,
            AggregateFunction.COUNT_SKETCH,
        ):  # the latter has no column
            continue
        values = "and ".join(f"{low:g} to {high:g}, " for low, high in measure.ranges)
        if measure.per_group and measure.bounds:
            caps[measure.alias] = "{:,g} to {:,g} each".format(*measure.bounds)
            continue
        caps[measure.alias] = f"{values}at most {_per_key(run):,} each"
    return caps


def left_out(published: Published, figures: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the sentences below a table of noisy numbers; `figures`: what is estimated of what the limits left out, if it is."""
    predicted = (PREDICTED,) if published.predicts else ()
    run = published.protects[-1] if published.protects else None
    if published.fit is not None:
        return (
            FITTED,
            *([_allowance(run, published) if run.units else NOT_ONE_PERSON] if run else []),
        )
    if run is not None and not run.units:
        return (NOISE_OF_ROWS, *predicted)
    if run is not None and not has_limits(published):
        return (NOISE_ALONE, *predicted)
    grows = [
        measure.additive or measure.function in (AggregateFunction.COUNT_DISTINCT_UNIT, *SKETCHES)
        for measure in published.measures
    ]
    if published.rows is Rows.LEFT_OUT:
        return (NOISE_OF_FIGURES,)
    can_grow = (any(grows) or not grows) and not figures
    words = [LEFT_OUT] * can_grow + [EITHER_SIDE] * (not all(grows))
    if run is not None:
        words.insert(0, _allowance(run, published))
    return (NOISE_ONLY, " ".join(words), *figures, *predicted)


def of_lists(published: Published) -> tuple[str, ...]:
    """Return the sentences below the values that a sketch lists."""
    run = published.protects[-1]
    return (LISTED, f"{_allowance(run, published)} {LEFT_OUT}" if run.units else NOT_ONE_PERSON)


def _per_key(run: Protects) -> int:
    """Return the records of one unit with one key, of which there is one where a query names none; where keys have domains no key has a bound."""
    return min(run.max_rows or 0, run.max_rows_per_group or run.max_rows or 0)


def _allowance(run: Protects, published: Published) -> str:
    """Return `One user_id counts with at most 8 records in a window, 4 per channel, in at most 2 values of channel.`"""
    listed = next((column.values for column in published.columns if column.role is Role.LIST), ())
    key = ", ".join(published.names(Role.KEY) or listed)
    max_records = (run.max_rows or 0) if key else _per_key(run)
    max_per_key = _per_key(run)
    max_groups = run.max_groups or max_records
    period = "" if published.once else " in the whole stream"
    if run.period_us:
        window = published.windows
        is_window = window is not None and window.slide_us == window.size_us
        period = " in a window" if is_window else f" in {duration(run.period_us)}"
    of_key = "" if key == "value" else f" of {key}"
    if run.max_rows is None and not key:
        return f"All records of one {', '.join(run.units)} count{period}."
    if run.max_rows is None:
        return f"One {', '.join(run.units)} counts in at most {max_groups:,} value{'' if max_groups == 1 else 's'}{of_key}{period}."
    record_word, at_once = ("row version", " at the same time") if run.rows_end else ("record", "")
    parts = [
        f"One {', '.join(run.units)} counts with at most {max_records:,} {record_word}{'' if max_records == 1 else 's'}{period}"
    ]
    parts += [f"{max_per_key:,} per {key}{at_once}"] if key and max_per_key < max_records else []
    parts += (
        [f"in at most {max_groups:,} value{'' if max_groups == 1 else 's'}{of_key}"]
        if key and max_groups < max_records
        else []
    )
    return ", ".join(parts) + "."


# Why a histogram has no rows, from what was promised alone: nothing here knows how close a key
# came.

HELPS = "What helps: {}fewer and coarser keys, more epsilon; public_groups, where the keys are no secret."


STATUS = "status.json, which the run keeps for its operator"


def why_nothing(published: Published, counts_file: str = "") -> str:
    """Return the sentences for an empty table; `counts_file` is where the owner of the records finds how many were dropped."""
    run = published.protects[-1]
    span = f"window of {duration(published.windows.size_us)}" if published.windows else "table"
    why = "no record was there" if published.once else "no trigger has passed"
    more_text = ""
    if run.units_needed is not None:
        why = f"{why}, or no key had enough people"
        helps = HELPS.format("longer windows, " if published.windows else "")
        more_text = f" {appears(run, published)} {helps}"
    elif published.windows and not published.lists:
        more_text = f" Rows begin with the first {span} after the source's `start`."
    if not counts_file:
        return f"No rows: {why}.{more_text}"
    return f"No rows. If records do not fit `schema`, none counts: see {counts_file}. Else {why}.{more_text}"


def next_trigger(published: Published, now_us: int) -> str:
    """Return when a live run releases next, on the grid: `2026-01-31 12:15 UTC`."""
    interval = published.trigger_us
    offset = published.windows.offset_us if published.windows else 0
    due = now_us - (now_us - offset) % interval + interval
    return f"{EPOCH + timedelta(microseconds=due):%Y-%m-%d %H:%M:%S} UTC"
