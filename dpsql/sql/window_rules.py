"""Rules on window(event_time, size, slide, offset), the event time and the triggers."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from dpsql.description import END, START
from dpsql.errors import Problem
from dpsql.parsed_query import SPREADS, AggregateFunction, PrivacyLevel
from dpsql.sql.aggregates import Call
from dpsql.sql.draft import Draft
from dpsql.sql.durations import FORMS, LONGEST_US, Misread, divisor_near, read_duration
from dpsql.sql.items import WINDOW_CALLS, Kind, call_name, names_window
from dpsql.sql.select_rules import TIME_TYPES, names_no_key
from dpsql.sql.spans import problem
from dpsql.sql.values import bare
from dpsql.times import show_duration

_NO_WINDOW = "or trigger_interval = '1 day' to OPTIONS for a table without windows"
_TIMES = ("size", "slide", "start offset")
MOST_PANES = 500
"""Of a window that is made of panes, with a delta: beyond, exact noise that float64 cannot round would take seconds."""

SUMS = (
    AggregateFunction.COUNT_ROWS,
    AggregateFunction.COUNT,
    AggregateFunction.SUM,
    AggregateFunction.AVG,
    *SPREADS,
)
"""Aggregates of a window that its panes add up to."""


def made_of_panes(draft: Draft) -> bool:
    """Whether windows are sums of panes: they slide and are released once, keys are listed or there is none, and panes take every aggregate. A
    record counts in one pane, and in no copy: for a day by hours a standard error of 71 in the place of 316. Of rows, and with delta = 0, they
    are panes unless something else is asked."""
    if draft.value("privacy_level") is PrivacyLevel.EVENT or draft.value("delta") == 0:
        other = draft.given("trigger_interval") or any(
            call.function is not None and not _of_panes(call) for call in draft.calls
        )
        return draft.value("delta") == 0 or not other
    if (
        not draft.window_times
        or draft.given("trigger_interval")
        or not (draft.listed or draft.keyless)
    ):
        return False
    size, slide, _ = draft.window_times
    return (
        slide < size
        and size % slide == 0
        and size // slide <= MOST_PANES
        and all(map(_of_panes, draft.calls))
    )


def _of_panes(call: Call) -> bool:
    return call.function in SUMS and not call.per_group


def window_missing(draft: Draft) -> Iterator[Problem]:
    """No window() in GROUP BY; a rule of the mechanisms that need one."""
    window = f"window({draft.time_column}, '1 day')"
    if draft.select.args.get("group") is None:
        yield problem(
            draft.clause_span,
            "The query has no GROUP BY",
            f"add GROUP BY {window} and the keys, {_NO_WINDOW}",
        )
    elif draft.cuts:
        for span, cut in draft.cuts.items():
            hint = f"write {cut} in GROUP BY, and window.start in the select list or nothing: the output has {START} and {END}"
            yield problem(span, "The event time is cut by window() only", hint)
    elif not any(
        call_name(g.root) in WINDOW_CALLS or names_window(g.root) for g in draft.groupings
    ) and not names_no_key(draft):
        spans = [grouping.span for grouping in draft.groupings]
        span = (spans[0][0], spans[-1][1]) if spans else draft.clause_span
        yield problem(span, "GROUP BY has no window", f"add {window} to GROUP BY, {_NO_WINDOW}")


def second_window(draft: Draft) -> Iterator[Problem]:
    """At most one window() in GROUP BY."""
    for call in draft.window_calls[1:]:
        yield problem(draft.span(call), "GROUP BY has a second window", "keep one window()")


def other_windows(draft: Draft) -> Iterator[Problem]:
    """session_window, tumble, hop."""
    for grouping in draft.groupings:
        name = call_name(grouping.root)
        if name in WINDOW_CALLS and name != "window":
            yield problem(
                grouping.span,
                f"`{name}` is not accepted in GROUP BY",
                f"write window({draft.time_column}, '1 day')",
            )


def window_in_list(draft: Draft) -> Iterator[Problem]:
    """A call of window() in the select list."""
    for item in draft.items:
        if item.kind is Kind.WINDOW_CALL:
            yield problem(
                item.span,
                "A window is defined in GROUP BY only",
                f"write window.start or window.end here, or leave it out: {START} and {END} are always there",
            )


def window_arguments(draft: Draft) -> Iterator[Problem]:
    """window(event_time, size[, slide[, start offset]])."""
    for call in draft.window_calls[:1]:
        count = len(call.expressions)
        if not 2 <= count <= 4:
            yield problem(
                draft.span(call),
                f"window takes 2 to 4 arguments, not {count}",
                f"write window({draft.time_column}, '1 day')",
            )
        for name, node in zip(_TIMES, call.expressions[1:4], strict=False):
            yield from _window_time(draft, name, node)


def _window_time(draft: Draft, name: str, node: exp.Expr) -> Iterator[Problem]:
    try:
        time = read_duration(draft.words(bare(node)))
    except Misread as misread:
        yield problem(draft.span(node), misread.message, misread.hint)
        return
    if time <= 0 and name != "start offset":
        yield problem(
            draft.span(node), f"The window's {name} must be longer than zero", f"write {FORMS}"
        )
    if abs(time) > LONGEST_US:
        yield problem(
            draft.span(node),
            f"The window's {name} must be at most 36525 days",
            "write a shorter duration",
        )


def slide_above_size(draft: Draft) -> Iterator[Problem]:
    """Windows with gaps between them."""
    for call in draft.window_calls[:1]:
        if len(call.expressions) < 3:
            continue
        try:
            size, slide = (read_duration(draft.words(bare(node))) for node in call.expressions[1:3])
        except Misread:
            continue
        if slide > size > 0:
            message = f"The slide {show_duration(slide)} is longer than the size {show_duration(size)}: records between windows would be lost"
            yield problem(
                draft.span(call.expressions[2]),
                message,
                f"write a slide of at most {show_duration(size)}, or leave it out",
            )


def event_time_column(draft: Draft) -> Iterator[Problem]:
    """The first argument of window() is a plain column that FROM has."""
    for call in draft.window_calls[:1]:
        node = bare(call.expressions[0]) if call.expressions else call
        if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier):
            hint = (
                "compute it in a sub-query of FROM under a name of its own"
                if not _declared(draft)
                else f"write window({_declared(draft)}, ...)"
            )
            yield problem(draft.span(node), "The event time of window() must be a column", hint)


def _declared(draft: Draft) -> str | None:
    return draft.stream.event_time if draft.stream else None


def event_time_untouched(draft: Draft) -> Iterator[Problem]:
    """The event time is the source's, straight from it: the clock rules rely on it."""
    for call in draft.window_calls[:1]:
        node = bare(call.expressions[0]) if call.expressions else None
        declared = _declared(draft)
        if (
            not declared
            or draft.stream is None
            or not isinstance(node, exp.Column)
            or any(r.unknown for r in draft.scope.relations)
        ):
            continue
        found = draft.scope.find(node)
        if node.name.lower() != declared:
            message = f"The event time of the source {draft.stream.name} is {declared}, not {node.name.lower()}"
            yield problem(draft.span(node), message, f"write window({declared}, ...)")
        elif [field.origin for field in found] != [(draft.stream.name, declared)]:
            message = f"The event time may not be computed or renamed: FROM does not pass `{declared}` on as {draft.stream.name} has it"
            yield problem(
                draft.span(node),
                message,
                f"select {declared} itself in the sub-query, under its own name and once",
            )


def event_time_type(draft: Draft) -> Iterator[Problem]:
    """Windows are cut by timestamps."""
    for call in draft.window_calls[:1]:
        node = bare(call.expressions[0]) if call.expressions else None
        if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier):
            continue
        found = draft.scope.find(node)
        kind = found[0].type if len(found) == 1 else None
        if kind is not None and kind.this not in TIME_TYPES:
            message = f"The event time `{node.name}` is {kind.sql(dialect='spark')}, not TIMESTAMP"
            yield problem(draft.span(node), message, "declare it as TIMESTAMP in sources.yaml")


def trigger_fits_slide(draft: Draft) -> Iterator[Problem]:
    """The slide is a multiple of the trigger interval."""
    given = draft.given("trigger_interval")
    interval = draft.value("trigger_interval")
    if not given or not interval or not draft.window_times or draft.window_times[1] % interval == 0:
        return
    slide = draft.window_times[1]
    name = "size" if slide == draft.window_times[0] else "slide"
    message = f"The window's {name} {show_duration(slide)} is not a multiple of trigger_interval = {show_duration(interval)}"
    yield problem(
        given.value_span,
        message,
        f"write trigger_interval = '{show_duration(divisor_near(slide, interval))}'",
    )
