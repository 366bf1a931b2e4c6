"""The options of a query of sliding windows, how they are read, and what it may not say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dpsql.errors import Problem
from dpsql.mechanisms.sliding.plan import PaneChoices, PaneGrouping
from dpsql.parsed_query import AggregateFunction, PrivacyLevel
from dpsql.parts.increments import sums_of
from dpsql.sql import clause_rules, event_rules, options, time_rules
from dpsql.sql.draft import Draft, Option
from dpsql.sql.event_rules import event
from dpsql.sql.text import problem
from dpsql.sql.values import divisor_near
from dpsql.times import show_duration

# The options that a query of sliding windows for ever may write.

OPTIONS: tuple[Option, ...] = options.USUAL


def read_choices(draft: Draft) -> PaneChoices:
    """Return what an accepted query asks, every default filled in."""
    event = draft.value("privacy_level") is PrivacyLevel.EVENT
    bounds: dict[str, Any] = {
        option.name: None if event else draft.value(option.name) for option in options.BOUNDS
    }
    is_written = draft.entry(options.MAX_GROUPS_CONTRIBUTED.name) and not options.only_group(draft)
    if not event and draft.keyless and not is_written:
        bounds[options.MAX_GROUPS_CONTRIBUTED.name] = (
            1  # rows are copied into no window: the one key needs one place
        )
    return PaneChoices(
        privacy_level=draft.value("privacy_level"),
        grouping=PaneGrouping.RETROACTIVE if draft.paper else PaneGrouping.NONE,
        **bounds,
    )


# What a query of sliding windows for ever may not say, besides what no query may.


def listed_keys(draft: Draft) -> Iterator[Problem]:
    """Reject keys that are not listed; a query may have none."""
    asks = draft.entry("delta")
    if asks and not event(draft) and not draft.keyless and not draft.listed and draft.keys:
        hint = "list them: public_groups = (SELECT page FROM pages)"
        yield problem(asks.name_span, "Unknown keys need delta > 0 and users", hint)


def distinct_units(draft: Draft) -> Iterator[Problem]:
    """Reject COUNT(DISTINCT unit) in panes."""
    for call in draft.calls:
        if call.function is AggregateFunction.COUNT_DISTINCT_UNIT and not event(draft):
            message = "The distinct users of a window are not the sum of its panes' distinct users"
            yield problem(call.item.span, message, "write a delta above 0")


def pairs_in_panes(draft: Draft) -> Iterator[Problem]:
    """Reject aggregates of two values in panes."""
    for call in draft.calls:
        if call.of_pairs:
            message = f"{call.name.upper()} has Gaussian noise"
            hint = "write a delta above 0, for example delta = 1e-9"
            yield problem(call.item.span, message, hint)


def one_release(draft: Draft) -> Iterator[Problem]:
    """Reject a trigger interval that is not the slide: a window is released once."""
    entry = draft.entry("trigger_interval")
    interval = draft.value("trigger_interval")
    if entry and interval and draft.window_times and interval != draft.window_times[1]:
        message = "A window is released once, when its last slide closes"
        yield problem(
            entry.name_span,
            message,
            f"leave trigger_interval out: it is the slide, {show_duration(draft.window_times[1])}",
        )


def whole_panes(draft: Draft) -> Iterator[Problem]:
    """Reject a size that is no multiple of the slide."""
    if not draft.window_times or draft.window_times[0] % draft.window_times[1] == 0:
        return
    size, slide, _ = draft.window_times
    message = f"The window's size {show_duration(size)} is not a multiple of its slide {show_duration(slide)}"
    divisor = show_duration(divisor_near(size, slide))
    yield problem(
        draft.span(draft.window_calls[0].expressions[2]),
        message,
        f"use a slide that divides {show_duration(size)}, such as {divisor}",
    )


def of_the_paper(draft: Draft) -> Iterator[Problem]:
    """Reject what the paper does not have: it has events, discrete Laplace, one aggregate."""
    entry = draft.entry("mechanism")
    if not entry or not draft.paper:
        return
    if not event(draft) or draft.value("delta"):
        hint = "leave it out, or write privacy_level = EVENT and delta = 0"
        yield problem(
            entry.name_span, "The paper on sliding windows protects events, without a delta", hint
        )
    if len(draft.calls) > 1:
        yield problem(
            entry.name_span,
            "The paper measures one aggregate",
            "write a query for each aggregate, or leave mechanism out",
        )
    for call in draft.calls:
        if call.function is not None and sums_of(call.function) > 1:
            yield problem(
                call.item.span,
                f"The paper does not take {call.name.upper()}, which is several sums",
                "write SUM, or leave mechanism out",
            )


RULES = (
    time_rules.window_missing,
    clause_rules.required_options,
    *event_rules.RULES,
    listed_keys,
    distinct_units,
    pairs_in_panes,
    one_release,
    whole_panes,
    of_the_paper,
    clause_rules.rows_per_group_above_rows,
    clause_rules.groups_above_rows,
)


def claims(draft: Draft) -> bool:
    """Return a query whose windows are sums of panes (`window_rules.made_of_panes`), or that protects events and has neither window nor table."""
    if draft.sketches or (draft.windowless and event(draft)):
        return False
    return time_rules.made_of_panes(draft) if draft.window_calls else event(draft)


__all__ = ["RULES", "claims"]
