"""What a query of sliding windows for ever may not say, besides what no query may."""

from __future__ import annotations

from collections.abc import Iterator

from dpsql.errors import Problem
from dpsql.mechanisms.sliding.asked import PaneGrouping, Smoothing
from dpsql.mechanisms.sliding.options import OWN, counter
from dpsql.parsed_query import AggregateFunction, CounterName, GroupSelection
from dpsql.sql import aggregate_rules, clause_rules, window_rules
from dpsql.sql.draft import Draft
from dpsql.sql.durations import divisor_near
from dpsql.sql.event_rules import event, rows_of_events, units_of_events
from dpsql.sql.spans import Span, problem
from dpsql.sql.values import Given
from dpsql.times import show_duration


def _asks(draft: Draft) -> Given | None:
    """The option that makes a query this mechanism's."""
    if event(draft):
        return draft.given("privacy_level")
    if draft.value("delta") == 0:
        return draft.given("delta")
    return next((given for given in map(draft.given, ("counter", *(option.name for option in OWN))) if given), None)


def listed_keys(draft: Draft) -> Iterator[Problem]:
    """Keys are listed, or there are none."""
    asks = _asks(draft)
    if asks is None or draft.keyless or draft.value("group_selection_strategy") != GroupSelection.THRESHOLD or not draft.keys:
        return
    if event(draft) or draft.value("delta") == 0:
        message, hint = "Unknown keys need delta > 0 and users", "list them: group_selection_strategy = PUBLIC_GROUPS"
        yield problem(asks.name_span, message, f"{hint}, public_groups = (SELECT page FROM pages)")
    else:
        message = f"{asks.name} is for keys that are listed, or none"
        yield problem(asks.name_span, message, "add group_selection_strategy = PUBLIC_GROUPS, public_groups = (SELECT page FROM pages)")


def distinct_units(draft: Draft) -> Iterator[Problem]:
    """COUNT(DISTINCT unit)."""
    for call in draft.calls:
        if call.function is not AggregateFunction.COUNT_DISTINCT_UNIT:
            continue
        if event(draft):
            yield problem(call.item.span, "An event has no user", "write COUNT(*), or use privacy_level = USER")
        else:
            hint = "use counter = BLT" + (" with delta above 0" if draft.value("delta") == 0 else "")
            yield problem(call.item.span, "The distinct users of a window are not the sum of its panes' distinct users", hint)


def one_release(draft: Draft) -> Iterator[Problem]:
    """A window is released once."""
    given, interval = draft.given("trigger_interval"), draft.value("trigger_interval")
    if given and interval and draft.window_times and interval != draft.window_times[1]:
        message = "A window is released once, when its last slide closes"
        yield problem(given.name_span, message, f"leave trigger_interval out: it is the slide, {show_duration(draft.window_times[1])}")


def whole_panes(draft: Draft) -> Iterator[Problem]:
    """The size is a multiple of the slide."""
    if not draft.window_times or draft.window_times[0] % draft.window_times[1] == 0:
        return
    size, slide, _ = draft.window_times
    message = f"The window's size {show_duration(size)} is not a multiple of its slide {show_duration(slide)}"
    divisor = show_duration(divisor_near(size, slide))
    yield problem(_slide_span(draft), message, f"use a slide that divides {show_duration(size)}, such as {divisor}")


def _slide_span(draft: Draft) -> Span:
    return draft.span(draft.window_calls[0].expressions[2])


def counters(draft: Draft) -> Iterator[Problem]:
    """PANES and WINDOW_SQRT; what each of them needs."""
    given, chosen = draft.given("counter"), counter(draft)
    if given and draft.values.get("counter") and chosen is None:
        message = f"counter = {draft.value('counter')} is for queries that protect users with delta above 0"
        yield problem(given.value_span, message, "leave it out, or write counter = PANES")
    elif not given and chosen is None and (asks := _asks(draft)):
        yield problem(asks.name_span, f"{asks.name} belongs to windows that are made of panes", "add counter = PANES")
    if given and chosen is CounterName.WINDOW_SQRT and draft.value("delta") == 0:
        yield problem(given.value_span, "Gaussian noise needs delta > 0", "write counter = PANES, or a delta above 0")


def groupings(draft: Draft) -> Iterator[Problem]:
    """One aggregate, discrete Laplace, no delta."""
    given, chosen = draft.given("grouping"), counter(draft)
    if not given or draft.value("grouping") in (None, PaneGrouping.NONE):
        share = draft.given("monitor_share")
        if share:
            yield problem(share.name_span, "monitor_share has no meaning without grouping", "leave it out, or add grouping = PLANNED")
        return
    what = f"grouping = {draft.value('grouping')}"
    if draft.given("counter") and chosen is CounterName.WINDOW_SQRT:
        yield problem(given.value_span, f"{what} is of counter = PANES", "leave counter out, or grouping")
    elif draft.value("delta"):
        yield problem(given.value_span, f"{what} needs discrete Laplace noise alone", "write delta = 0")
    if len(draft.calls) > 1:
        yield problem(given.value_span, f"{what} measures one aggregate", "write a query for each aggregate, or leave grouping out")
    for call in draft.calls:
        if call.function is AggregateFunction.AVG:
            yield problem(call.item.span, f"{what} does not take AVG, which is two sums", "write SUM, or leave grouping out")


def smoothings(draft: Draft) -> Iterator[Problem]:
    """Where the noise says how far a smoothed value may be trusted."""
    given = draft.given("smoothing")
    if not given or draft.value("smoothing") is not Smoothing.LIMITED_TRANSLATION:
        return
    if counter(draft) is CounterName.WINDOW_SQRT:
        yield problem(given.value_span, "Smoothing needs noise of its own in every slide", "write counter = PANES, or leave smoothing out")
    elif draft.value("grouping") is PaneGrouping.RETROACTIVE:
        message = "RETROACTIVE repeats its errors, so the noise does not say how to smooth"
        yield problem(given.value_span, message, "write grouping = PLANNED, or leave smoothing out")


def one_column_above(draft: Draft) -> Iterator[Problem]:
    """publish_above compares the one aggregate."""
    given = draft.given("publish_above")
    if given and len(draft.calls) > 1:
        yield problem(given.name_span, "publish_above looks at one aggregate", "leave it out, or write a query for each aggregate")


def cap_of_level(draft: Draft) -> Iterator[Problem]:
    """A cap protects users or events."""
    given, stream = draft.given("privacy_level"), draft.stream
    if given and event(draft) and stream is not None and stream.cap is not None and stream.event_cap is None:
        message = f"The cap of source {stream.name} protects users, this query protects events"
        hint = (
            f"the source needs a cap for it: add `{{privacy_level: EVENT, epsilon: 1, delta: 0}}` to the list at sources.{stream.name}.cap"
        )
        yield problem(given.value_span, message, hint)


RULES = (
    window_rules.window_missing,
    clause_rules.required_options,
    units_of_events,
    listed_keys,
    rows_of_events,
    distinct_units,
    one_release,
    whole_panes,
    counters,
    groupings,
    smoothings,
    one_column_above,
    aggregate_rules.spreads_of_windows,
    cap_of_level,
    clause_rules.rows_per_group_above_rows,
    clause_rules.groups_above_rows,
)


def claims(draft: Draft) -> bool:
    """A query that protects events, unless it is over a table without windows; or with windows, and delta = 0, or a counter or an option of this
    mechanism."""
    if draft.sketches:
        return False
    if event(draft):
        return not draft.windowless
    asks = draft.value("delta") == 0 or draft.value("counter") in (CounterName.PANES, CounterName.WINDOW_SQRT)
    return bool(draft.window_calls) and (asks or any(draft.given(option.name) for option in OWN))


__all__ = ["RULES", "claims"]
