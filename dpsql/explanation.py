"""What a query promises and how exact its results will be: one value, one text and one JSON for
every kind of query, computed from a plan alone."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any

from dpsql.allowance import (
    Limits,
    allowance,
    allowance_sentences,
    defaults_text,
    estimate_text,
    further,
)
from dpsql.description import STDERR
from dpsql.explained_times import When, live_runs, times, times_in_short
from dpsql.text import WIDTH, Z95, aligned, number, percent, plural, wrapped
from dpsql.times import duration

CAREFUL = 20.0
"""No single query may ask for more epsilon; all its periods of a week together can cost more."""
WEEK = "any 7 days in a row"
LETTERS = " (n: values in the group, s: their standard deviation)"
SHOWN = 40
"""Tables of a CUBE that the text lists."""

# The value.


@dataclass(frozen=True)
class JointCost:
    """The joint cost of several events, or of all periods of one unit that a span of days touches.

    Args:
        span: of what it is the cost, in words.
        count: number of events or periods.
        epsilon: None where nothing is promised.
        delta: thresholds and hashes included.
    """

    span: str
    count: int
    epsilon: float | None
    delta: float


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """The privacy guarantee.

    Args:
        unit: columns that name a privacy unit; none where one event (a row) is protected.
        stream: name of the source.
        period_us: length of a contribution period; None: the whole stream.
        meet: whether one window can hold records of two periods.
        epsilon, delta: of one unit in one period, or of one event.
        cost: the same as the accountant computed it.
        totals: of several.
        rows_end: what a unit begins in a period is protected, with all that happens to it later.
    """

    unit: tuple[str, ...]
    stream: str
    period_us: int | None
    meet: bool
    epsilon: float
    delta: float
    cost: Mapping[str, Any]
    totals: tuple[JointCost, ...]
    rows_end: bool = False

    @property
    def span(self) -> str:
        """How long the contribution limits of a unit last."""
        return f"in {duration(self.period_us)}" if self.period_us else "in the whole stream"


@dataclass(frozen=True)
class UnitsNeeded:
    """Units with which half of the keys are released at a trigger, in each of so many windows."""

    trigger: int
    units: int
    windows: int = 1


@dataclass(frozen=True)
class ErrorBar:
    """The error of a number at a trigger.

    Args:
        trigger: number of the trigger, of its window or table.
        statistic: `value`, or what a value is made of: `sum`, `squares`, `count`, of two values also `sum of x`, `products`; or `rank`, in rows.
        stderr: standard error; None where none is known in advance.
        half_width: of the 95% interval; None likewise.
        divisor: what the error is to be divided by: nothing, or one like `n` and `(2 n s)`.
        scope: the part of a CUBE that the error is of.
    """

    trigger: int
    statistic: str
    stderr: float | None
    half_width: float | None
    divisor: str = ""
    scope: str | None = None

    @property
    def bar(self) -> str:
        """The error bar in words, or why there is none."""
        if self.half_width is not None:
            return f"± {number(self.half_width)}"
        return "no error bar" if self.stderr is None else f"standard error {number(self.stderr)}"

    @property
    def unit(self) -> str:
        """The words that stand after the error bar."""
        rows = "rows" if self.statistic == "rank" else ""
        return f"/ {self.divisor}" if self.divisor else rows


def gaussian(
    trigger: int, statistic: str, stderr: float, divisor: str = "", scope: str | None = None
) -> ErrorBar:
    """Return the error of Gaussian noise; `stderr` is infinite where nothing covers the number."""
    if math.isinf(stderr):
        return ErrorBar(trigger, statistic, None, None, divisor, scope)
    return ErrorBar(trigger, statistic, stderr, Z95 * stderr, divisor, scope)


@dataclass(frozen=True, kw_only=True)
class ReleasedTable:
    """One measured table of a CUBE.

    Args:
        names: its keys.
        grouping_id: its number in SQL.
        cells: number of its cells.
        share: of mu^2.
        errors: of one cell at the last trigger; their scope is the column's alias.
    """

    names: tuple[str, ...]
    grouping_id: int
    cells: int
    share: float
    errors: tuple[ErrorBar, ...]


@dataclass(frozen=True, kw_only=True)
class Keys:
    """The keys that are released.

    Args:
        how: `public`, `selected` or `none`.
        names: columns of a key.
        units_needed: of a selected key, at the first trigger, at the last, and at some between.
        units_needed_jointly: the same for windows that prove a key together.
        listed: length of a sketch's longest list.
        cells: that are released at every trigger, where a key does not name them.
        tables: of a CUBE.
    """

    how: str
    names: tuple[str, ...]
    units_needed: tuple[UnitsNeeded, ...] = ()
    units_needed_jointly: tuple[UnitsNeeded, ...] = ()
    listed: int | None = None
    cells: int | None = None
    tables: tuple[ReleasedTable, ...] = ()

    @property
    def name(self) -> str:
        return f"({', '.join(self.names)})" if len(self.names) > 1 else "".join(self.names)


@dataclass(frozen=True, kw_only=True)
class ExplainedColumn:
    """A released column.

    Args:
        alias: its name.
        aggregate: what it is, in words of SQL.
        bounds: clamping bounds; of two values those of y, then those of x.
        bounds_of: `row`, or `group` where they clamp what a unit adds to a group; `pair` of two values.
        errors: by trigger, the first and the last among them; the first scope is the one to name.
        parts: errors of all that the value is made of, where it is more than one noisy number.
        notes: sentences about it.
        on_selection: the sum that chooses keys is a part of it, so keys near their threshold have a wider bar.
    """

    alias: str
    aggregate: str
    bounds: tuple[float, ...] | None
    bounds_of: str | None
    errors: tuple[ErrorBar, ...]
    parts: tuple[ErrorBar, ...] = ()
    notes: tuple[str, ...] = ()
    on_selection: bool = False

    @property
    def last(self) -> ErrorBar:
        """The error at the last trigger."""
        return [error for error in self.errors if error.scope == self.errors[0].scope][-1]


@dataclass(frozen=True, kw_only=True)
class BudgetShares:
    """The purposes that the budget is spent on.

    Args:
        mu: of all Gaussian noise; 0 where noise is discrete Laplace.
        figures_share: share of mu^2 for figures of what the limits leave out.
        selection_share: share of mu^2 that selects keys.
        noisy_numbers: of a group, which share the rest; None: they share it unequally.
        delta_noise, delta_threshold, delta_hash: what delta is for.
    """

    mu: float
    figures_share: float = 0.0
    selection_share: float = 0.0
    noisy_numbers: int | None
    delta_noise: float
    delta_threshold: float = 0.0
    delta_hash: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Notes:
    """Sentences that only one kind of query has, by section."""

    protects: tuple[str, ...] = ()
    when: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    budget: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """All that `dpsql explain` says of a query."""

    protects: Guarantee
    when: When
    limits: Limits
    keys: Keys
    columns: tuple[ExplainedColumn, ...]
    budget: BudgetShares
    identity: str
    notes: Notes = field(default_factory=Notes)

    @property
    def subject(self) -> str:
        """The records that the guarantee hides, in words."""
        protects = self.protects
        unit = ", ".join(protects.unit)
        if not unit:
            return f"one row of {protects.stream} (not one person)"
        if self.when.once:
            return f"everything of one {unit}, in all records"
        if protects.rows_end and protects.period_us:
            return (
                f"all rows that one {unit} begins {protects.span}, with what happens to them later"
            )
        return f"everything that one {unit} does {protects.span}"

    def json(self) -> dict[str, Any]:
        """Return all of it under names that every kind of query has; a missing number is null."""
        return dict(json.loads(json.dumps(asdict(self), allow_nan=False)))

    def text(self) -> str:
        """Return the sections that every query has, in lines of at most 120 characters."""
        notes = self.notes
        sections = {
            "In short": [*_short(self)],
            "What is promised": [*_promise(self), *notes.protects],
            "When": [*times(self.when), *notes.when, *live_runs(self.when)],
            "Limits": [*_limits(self), *notes.limits],
            "Which keys are released": [*_keys(self), *notes.keys],
            "How exact the numbers are": [*_columns(self), *notes.columns],
            "How the budget is spent": [*_budget(self), *notes.budget],
        }
        texts = ["\n  ".join([title, *wrapped(lines)]) for title, lines in sections.items()]
        return "\n\n".join([*texts, f"Query identity: {self.identity}"]) + "\n"


def _short(e: Explanation) -> Iterator[str]:
    p = e.protects
    once = e.when.once
    lines = {
        "Protected": f"{e.subject}: epsilon {p.epsilon:g}, delta {p.delta:g}{', once' if once else ''}.",
        "Adds up to": _adds_up(p, once),
        "When": times_in_short(e.when),
        "Keys": _keys_in_short(e),
        "Noise": _noise(e),
        "Limits": f"{_allowance(e)}.{further(e.limits, e.keys.name, once)}",
        "Left out": estimate_text(e.limits, e.keys.name, once),
        "Defaults": defaults_text(e.limits, e.keys.name),
    }
    for name, text in lines.items():
        if text and (name != "Limits" or p.unit):
            line = f"{name + ':':<12}{text}"
            yield from textwrap.wrap(line, WIDTH, subsequent_indent=" " * 12)


def _adds_up(p: Guarantee, once: bool) -> str:
    if not p.totals:
        end = "; another release adds its own" if once else ", however long the run lasts"
        return f"no more{end}."
    if not p.unit:
        costs = [
            f"{number(each.epsilon)} (delta {each.delta:.2g}) in {each.span}" for each in p.totals
        ]
        return f"epsilon {', '.join(costs)} of one person."
    costs = [f"{number(each.epsilon)} in {each.span}" for each in p.totals]
    careful = ""
    week = [total.epsilon or math.inf for total in p.totals if total.span == WEEK]
    if max(week) > CAREFUL:
        careful = (
            f" CAREFUL: more than {CAREFUL:g} in 7 days promises little to someone active all the "
            f"time. Longer {'periods' if p.rows_end else 'windows'}, a smaller epsilon, or contribution_period = STREAM make it less; "
            "a cap on the source limits it."
        )
    return f"epsilon {', '.join(costs)}, for someone active all the time.{careful}"


def _keys_in_short(e: Explanation) -> str:
    keys = e.keys
    if keys.tables:
        names = ", ".join(keys.names)
        return f"all {keys.cells:,} cells of {plural(len(keys.tables), 'table')} over {names}."
    if keys.listed is not None:
        lists = f"at most {keys.listed:,} values are listed; " if keys.listed else ""
        return f"{lists}dpsql ask gives the count of any value, listed or not."
    if keys.how == "none":
        return "none: one row." if e.when.once else "none: one row per release."
    if keys.how == "public":
        return "the public groups, all of them."
    last = keys.units_needed[-1]
    where = f" at trigger {last.trigger:,}" if e.when.window_us is None else " in a window"
    where = "" if e.when.once else where
    joint = [
        f", or {each.units:,} in each of {each.windows} windows"
        for each in keys.units_needed_jointly
    ]
    return (
        f"{keys.name} is released once about {last.units:,} distinct {', '.join(e.protects.unit)} "
        f"have it{where}{''.join(joint[-1:])}; a missing {keys.name} is not zero."
    )


def _noise(e: Explanation) -> str:
    errors = {column.alias: column.last for column in e.columns if column.errors}
    if not errors:
        return "every cell has its own error bar."
    bars = ", ".join(f"{alias} {error.bar} {error.unit}".strip() for alias, error in errors.items())
    last = next(iter(errors.values()))
    scope = f" in {last.scope}" if last.scope else ""
    trigger = " at the last trigger" if e.when.releases else f" at trigger {last.trigger:,}"
    trigger = "" if e.when.once else trigger
    collisions = "" if e.keys.listed is None else ", and collisions with other values"
    letters = LETTERS if any(error.divisor for error in errors.values()) else ""
    is_chosen = any(column.on_selection for column in e.columns)
    wider = "; more, downwards, for a key that has only just appeared" if is_chosen else ""
    return f"{bars}{letters}{scope}{trigger}, 95%{collisions}{wider}."


def _promise(e: Explanation) -> Iterator[str]:
    p = e.protects
    rows = "all released rows" if e.when.once else "all released rows, of all triggers together,"
    yield f"Whoever sees {rows} learns almost the same with and without {e.subject}."
    for total in p.totals:
        periods = f"up to {plural(total.count, 'period')}, " if p.unit else ""
        yield f"In {total.span}: {periods}epsilon {number(total.epsilon)}, delta {total.delta:.2g}."
    if p.meet:
        yield "A window can hold records of two periods; their contributions add up."
    if not p.unit:
        yield "Changing an event costs as much as 2 events."
    if not p.delta:
        yield "delta is 0 for ideal random words; dpsql takes them from a pseudo-random function (AES), as for all noise."
    yield "This is for this run alone; `dpsql budget` adds up all runs."
    clock = "" if e.when.once else "when triggers happen, and "
    yield f"Not hidden: {clock}the operator's own metrics (exact totals per micro-batch of the rows that WHERE keeps)."


def _allowance(e: Explanation) -> str:
    span = "" if e.when.once else e.protects.span
    return allowance(e.limits, e.protects.unit, span, e.keys.name)


def _limits(e: Explanation) -> Iterator[str]:
    limits = e.limits
    if e.protects.unit:
        is_long = not (e.protects.period_us or e.when.once)
        yield from allowance_sentences(limits, _allowance(e), e.keys.name, e.when.once, is_long)
    else:
        yield f"One event is one row, in one {'pane of one key' if e.when.panes else 'key'}."
    if limits.no_figures:
        yield f"No estimate of what the limits leave out: {limits.no_figures}."
    if limits.pairs:
        yield f"At most {limits.pairs:,} pairs of window and key count; further ones add nothing."
    bounded = [column for column in e.columns if column.bounds]
    for (bounds, level), columns in groupby(
        bounded, lambda column: (column.bounds, column.bounds_of)
    ):
        text = "each value is clamped to [{:g}, {:g}]; NULL and NaN add nothing."
        if level == "group":
            text = "what one unit adds to a group is clamped to [{:g}, {:g}]; the error bars do not show what is cut."
        if level == "pair":
            text = "y is clamped to [{:g}, {:g}], x to [{:g}, {:g}]; a record without one of them adds nothing."
        yield f"{', '.join(column.alias for column in columns)}: {text.format(*bounds or ())}"
    if e.protects.unit:
        keys = f" and {limits.max_keys:,} keys" if limits.max_keys else ""
        yield f"Declared for {e.protects.stream}: at most {limits.max_users:,} units{keys}."


def _keys(e: Explanation) -> Iterator[str]:
    keys = e.keys
    often = "" if e.when.once else "at every trigger, "
    always = f"{often}with or without records"
    if e.when.window_us:
        always = f"in every window from the declared start of the stream on, {always}"
    if keys.tables:
        yield f"All {keys.cells:,} cells, {always}:"
        yield from _measured(keys, e.when.once)
    elif keys.how == "none":
        yield f"There is no key: one row{', ' if e.when.once else ' '}{always}."
    elif keys.how == "public":
        yield f"The keys that public_groups lists when the run first starts, each {always}."
    elif keys.units_needed:
        needs = [
            f"{each.units:,}" + ("" if e.when.once else f" at trigger {each.trigger:,}")
            for each in keys.units_needed
        ]
        yield (
            "No key is known in advance. A key is released once about this many units have it: "
            f"{', '.join(needs)} (half of the keys with exactly that many are released)."
        )


def _measured(keys: Keys, once: bool) -> Iterator[str]:
    """Yield a line for each table of a CUBE, with the errors of a cell."""
    trigger = "" if once else f" at trigger {keys.tables[0].errors[0].trigger:,}"
    rows = [["keys", "cells", "of mu^2", f"95% of one cell{trigger}"]]
    for table in keys.tables[:SHOWN]:
        main = [error for error in table.errors if error.statistic == "value" or error.divisor]
        bars = [f"{error.scope} {error.bar} {error.unit}".strip() for error in main]
        cells = [f"{table.cells:,}", percent(table.share), ", ".join(bars)]
        rows.append([f"({', '.join(table.names)})", *cells])
    yield from aligned(rows, "<>><")
    if len(keys.tables) > SHOWN:
        yield f"and {len(keys.tables) - SHOWN:,} more (dpsql explain --json lists all)"


def _columns(e: Explanation) -> Iterator[str]:
    columns = e.columns
    yield "95% of released values are this close to the bounded value (exact, within limits and bounds):"
    triggers = sorted({error.trigger for column in columns for error in column.errors})
    rows = [["", "", *(f"trigger {trigger:,}" for trigger in triggers), ""]]
    for column in columns:
        rows += _rows(column, len(triggers))
    yield from aligned(rows[e.when.once :], f"<<{'>' * len(triggers)}<")
    errors = [error for column in columns for error in column.errors]
    if any(error.scope and error.stderr is None for error in errors):
        yield "No error bar: some of these questions cannot be answered from the released tables."
    several = [column for column in columns if column.parts or not column.errors]
    if lines := [column.alias for column in several if column.aggregate.startswith("REGR_")]:
        yield (
            f"{', '.join(lines)}: NULL where noise could be all of the variance of x, or the error of the slope is as "
            f"large as the bounds allow. The column's _{STDERR} has the errors of all its sums."
        )
    if quotients := [column.alias for column in several if column.alias not in lines]:
        yield (
            f"{', '.join(quotients)}: the middle of what the noisy numbers allow at the 95% level; with "
            f"few rows, of everything between the bounds. The column's _{STDERR} has all their errors."
        )
    for column in columns:
        yield from column.notes
    if further(e.limits, e.keys.name) or any(column.bounds for column in columns):
        yield "Not in these numbers: what the limits drop or clamp."


def _rows(column: ExplainedColumn, width: int) -> Iterator[list[str]]:
    """Yield the cells of each noisy number of a column, with its error bars by trigger."""
    further_parts = [part for part in column.parts if part.statistic != column.last.statistic]
    name = column.alias
    aggregate = column.aggregate
    by_number = groupby([*column.errors, *further_parts], attrgetter("statistic", "scope"))
    for (statistic, scope), errors in by_number:
        bars = [(error.bar, error.unit) for error in errors]
        part = "" if statistic in ("value", "rank") else f" its {statistic}"
        label = f"{aggregate}{part}{f' in {scope}' if scope else ''}".strip()
        yield [name, label, *[""] * (width - len(bars)), *(bar for bar, _ in bars), bars[0][1]]
        name = aggregate = ""


def _shares(e: Explanation) -> Iterator[str]:
    b = e.budget
    if not b.mu or b.noisy_numbers is None:
        return
    is_counted = any(column.on_selection for column in e.columns)
    chooses = "chooses keys and counts their units" if is_counted else "for key selection"
    share_each = (1 - b.figures_share - b.selection_share) / max(1, b.noisy_numbers)
    each_number = f"for each noisy number of a group ({b.noisy_numbers})"
    parts = {
        "for what the limits leave out": b.figures_share,
        chooses: b.selection_share,
        each_number if b.noisy_numbers > 1 else "for the noisy number of a group": share_each
        if b.noisy_numbers
        else 0.0,
    }
    shares = [f"{percent(share)} {purpose}" for purpose, share in parts.items() if share]
    yield f"Shares of the budget: {', '.join(shares)}."


def _budget(e: Explanation) -> Iterator[str]:
    b = e.budget
    if b.mu:
        yield (
            f"All noise is Gaussian and composed jointly: mu = {b.mu:.4f}, the least noise for "
            f"epsilon {e.protects.epsilon:g}, delta {b.delta_noise:.3g}."
        )
    else:
        yield "All noise is discrete Laplace."
    if b.mu and e.protects.totals:
        yield "Several periods or events share one account of this noise: epsilon can grow faster than their number."
    yield from _shares(e)
    parts = {
        "for the noise": b.delta_noise,
        "for keys that only one unit has": b.delta_threshold,
        "for id collisions": b.delta_hash,
    }
    if delta := [f"{part:.3g} {purpose}" for purpose, part in parts.items() if part]:
        yield f"delta = {' + '.join(delta)}."
