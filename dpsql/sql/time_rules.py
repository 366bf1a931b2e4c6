"""Rules on time: windows and triggers, tables without windows, change feeds."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from dpsql.description import END, START
from dpsql.errors import Problem
from dpsql.parsed_query import SPREADS, AggregateFunction, ContributionPeriod
from dpsql.sources.change_feed import BESIDE
from dpsql.sources.time_units import TEXT, UNITS, has_unit, wrong_unit
from dpsql.sql.aggregates import Call
from dpsql.sql.clause_rules import missing_options
from dpsql.sql.draft import Draft
from dpsql.sql.event_rules import event
from dpsql.sql.items import WINDOW_CALLS, Kind, call_name
from dpsql.sql.options import TRIGGER_INTERVAL
from dpsql.sql.relations import schema_fields
from dpsql.sql.select_rules import TIME_TYPES
from dpsql.sql.text import Span, problem
from dpsql.sql.values import (
    FORMS,
    LONGEST_US,
    Misread,
    bare,
    divisor_near,
    is_column,
    read_duration,
)
from dpsql.times import UNITS_US, show_duration

EVENT_TIMES = (*TIME_TYPES, exp.DType.DATE)

# Rules on window(event_time, size, slide, offset), the event time and the triggers.

_TIMES = ("size", "slide", "start offset")
MOST_PANES = 500
"""Limit on the panes of a window, with a delta: beyond, exact noise that float64 cannot round would take seconds."""

SUMS = (
    AggregateFunction.COUNT_ROWS,
    AggregateFunction.COUNT,
    AggregateFunction.SUM,
    AggregateFunction.AVG,
    *SPREADS,
)
"""Aggregates of a window that its panes add up to."""


def made_of_panes(draft: Draft) -> bool:
    """Tell whether windows are sums of panes: they slide and are released once, keys are listed or there is none, and panes take every aggregate. A
    record counts in one pane, and in no copy: for a day by hours a standard error of 71 in the place of 316. Of rows, and with delta = 0, they
    are panes unless something else is asked."""
    if event(draft) or draft.value("delta") == 0:
        needs_windows = draft.entry("trigger_interval") or any(
            call.function is not None and not _of_panes(call) for call in draft.calls
        )
        return draft.value("delta") == 0 or not needs_windows
    if (
        not draft.window_times
        or draft.entry("trigger_interval")
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
    """Reject a GROUP BY without window() where the select list has one, and a list of values without any window."""
    window = f"window({draft.time_column}, '1 day')"
    if draft.windowless:
        for call in draft.sketches[:1]:
            hint = (
                f"GROUP BY {window}, or count the values once: SELECT value, COUNT(*) AS n ... "
                "GROUP BY value ORDER BY n DESC LIMIT 10"
            )
            yield problem(call.item.span, f"{call.name.upper()} needs a window", hint)
    elif draft.select.args.get("group") is None:
        message = "The query has no GROUP BY"
        yield problem(draft.clause_span, message, f"add GROUP BY {window} and the keys")
    elif draft.cuts:
        for span, equivalent in draft.cuts.items():
            hint = f"write {equivalent} in GROUP BY, and window.start in the select list or nothing: the output has {START} and {END}"
            yield problem(span, "The event time is cut by window() only", hint)
    elif not any(grouping.is_window for grouping in draft.groupings):
        spans = [grouping.span for grouping in draft.groupings]
        span = (spans[0][0], spans[-1][1]) if spans else draft.clause_span
        yield problem(span, "GROUP BY has no window", f"add {window} to GROUP BY")


def second_window(draft: Draft) -> Iterator[Problem]:
    """Reject a second window() in GROUP BY."""
    for call in draft.window_calls[1:]:
        yield problem(draft.span(call), "GROUP BY has a second window", "keep one window()")


def other_windows(draft: Draft) -> Iterator[Problem]:
    """Reject session_window, tumble and hop."""
    for grouping in draft.groupings:
        name = call_name(grouping.root)
        if name in WINDOW_CALLS and name != "window":
            yield problem(
                grouping.span,
                f"`{name}` is not accepted in GROUP BY",
                f"write window({draft.time_column}, '1 day')",
            )


def window_in_list(draft: Draft) -> Iterator[Problem]:
    """Reject a call of window() in the select list."""
    for item in draft.items:
        if item.kind is Kind.WINDOW_CALL:
            yield problem(
                item.span,
                "A window is defined in GROUP BY only",
                f"write window.start or window.end here, or leave it out: {START} and {END} are always there",
            )


def window_arguments(draft: Draft) -> Iterator[Problem]:
    """Reject arguments other than window(event_time, size[, slide[, start offset]])."""
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
    """Reject windows with gaps between them."""
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
    """Reject a first argument of window() that is no plain column of FROM."""
    for call in draft.window_calls[:1]:
        node = bare(call.expressions[0]) if call.expressions else call
        if not is_column(node):
            hint = (
                "compute it in a sub-query of FROM under a name of its own"
                if not _declared(draft)
                else f"write window({_declared(draft)}, ...)"
            )
            yield problem(draft.span(node), "The event time of window() must be a column", hint)


def _declared(draft: Draft) -> str | None:
    return draft.stream.event_time if draft.stream else None


def event_time_untouched(draft: Draft) -> Iterator[Problem]:
    """Reject an event time that is not the source's, straight from it: the clock rules rely on it."""
    for call in draft.window_calls[:1]:
        node = bare(call.expressions[0]) if call.expressions else None
        declared = _declared(draft)
        if (
            not declared
            or draft.stream is None
            or not isinstance(node, exp.Column)
            or draft.scope.is_unknown
        ):
            continue
        fields = draft.scope.find(node)
        if node.name.lower() != declared:
            message = f"The event time of the source {draft.stream.name} is {declared}, not {node.name.lower()}"
            yield problem(draft.span(node), message, f"write window({declared}, ...)")
        elif [field.origin for field in fields] != [(draft.stream.name, declared)]:
            message = f"The event time may not be computed or renamed: FROM does not pass `{declared}` on as {draft.stream.name} has it"
            yield problem(
                draft.span(node),
                message,
                f"select {declared} itself in the sub-query, under its own name and once",
            )


def event_time_type(draft: Draft) -> Iterator[Problem]:
    """Reject an event time that is no timestamp."""
    for call in draft.window_calls[:1]:
        node = bare(call.expressions[0]) if call.expressions else None
        if not is_column(node):
            continue
        fields = draft.scope.find(node)
        if kind := _wrong_type(draft, fields[0].type if len(fields) == 1 else None):
            yield _no_time(draft, draft.span(node), node.name.lower(), kind)


def _wrong_type(draft: Draft, kind: exp.DataType | None) -> exp.DataType | None:
    """Return the type of an event time that is none, or has no such unit."""
    stream = draft.stream
    if stream is None or not (stream.event_time_unit and stream.schema):
        return None if kind is None or kind.this in EVENT_TIMES else kind
    stored_kind = dict(schema_fields(stream.schema) or ()).get(str(stream.event_time))
    if stored_kind is None or has_unit(stored_kind.sql("spark").lower(), stream.event_time_unit):
        return None
    return stored_kind


def _no_time(draft: Draft, span: Span, column: str, kind: exp.DataType) -> Problem:
    type_name = kind.sql(dialect="spark")
    hint = "declare it as TIMESTAMP in sources.yaml"
    unit = TEXT if has_unit(type_name.lower(), TEXT) else "milliseconds"
    if draft.stream and draft.stream.event_time_unit:
        message = wrong_unit(column, type_name, draft.stream.event_time_unit)
        return problem(span, message[0].upper() + message[1:], "write a unit that fits, or none")
    if draft.stream and draft.stream.of_frame:
        hint = f"say what it counts since 1970: time_unit={unit!r} in dpsql.session(...)"
    elif has_unit(type_name.lower(), unit):
        hint = f"write `event_time: {{column: {column}, unit: {unit}}}` in sources.yaml; units are {', '.join(UNITS)}"
    return problem(span, f"The event time `{column}` is {type_name}, not TIMESTAMP or DATE", hint)


def trigger_fits_slide(draft: Draft) -> Iterator[Problem]:
    """Reject a slide that is no multiple of the trigger interval."""
    entry = draft.entry("trigger_interval")
    interval = draft.value("trigger_interval")
    if not entry or not interval or not draft.window_times or draft.window_times[1] % interval == 0:
        return
    slide = draft.window_times[1]
    name = "size" if slide == draft.window_times[0] else "slide"
    message = f"The window's {name} {show_duration(slide)} is not a multiple of trigger_interval = {show_duration(interval)}"
    yield problem(
        entry.value_span,
        message,
        f"write trigger_interval = '{show_duration(divisor_near(slide, interval))}'",
    )


# Rules on queries that read a change feed: the current contents of a table, at every
# `trigger_interval`.


def window_over_changes(draft: Draft) -> Iterator[Problem]:
    """Reject a window over a table with current contents; a rule of every query."""
    if draft.stream and draft.stream.change_feed:
        for call in draft.window_calls[:1]:
            message = f"{draft.stream.name} is a table with current contents and has no windows"
            yield problem(
                draft.span(call), message, "leave window(...) out, and write trigger_interval"
            )


def interval_given(draft: Draft) -> Iterator[Problem]:
    """Reject a query that does not say when to release."""
    if draft.stream and draft.stream.change_feed:
        yield from missing_options(draft, (TRIGGER_INTERVAL,))


def change_passed(draft: Draft) -> Iterator[Problem]:
    """Reject a FROM that does not pass on what an image is and of which row."""
    stream = draft.stream
    if stream is None or stream.change_feed is None or draft.scope.is_unknown:
        return
    span = _from_span(draft)
    required_columns = [
        name for name in (*BESIDE, *stream.primary_key) if name != stream.event_time
    ]
    missing = [
        name
        for name in required_columns
        if [field.origin for field in draft.scope.find(exp.column(name))] != [(stream.name, name)]
    ]
    if missing:
        message = f"FROM does not pass {', '.join(f'`{name}`' for name in missing)} on as {stream.name} has it: what changes, and in which row"
        yield problem(
            span,
            message,
            f"select {', '.join((*BESIDE, *stream.primary_key))} themselves in the sub-query, each once, or *",
        )


def _from_span(draft: Draft) -> Span:
    """Return where the first table of FROM stands."""
    table = next(draft.select.args["from_"].find_all(exp.Table), None)
    return draft.span(table) if table else draft.clause_span


def one_row_each(draft: Draft) -> Iterator[Problem]:
    """Reject rows that FROM makes of an image: they have no name of their own."""
    if draft.stream and draft.stream.change_feed and draft.stream.primary_key:
        for scope in draft.scopes:
            for node in (*scope.joins, *scope.laterals):
                message = "FROM may make several rows of one row of the table, and these would have one primary key"
                yield problem(
                    draft.span(node),
                    message,
                    f"leave primary_key of {draft.stream.name} out: rows are then told apart by their values",
                )


def spells_of_changes(draft: Draft) -> Iterator[Problem]:
    """Reject a number of spells where rows do not end, or above the number of rows."""
    entry = draft.entry("max_spells_contributed")
    value = draft.value("max_spells_contributed")
    rows = draft.value("max_rows_contributed")
    if entry and draft.stream and draft.stream.change_feed is None:
        message = f"max_spells_contributed has no meaning: rows of {draft.stream.name} do not end"
        feed_text = "" if draft.stream.of_frame else ", or declare change_feed in sources.yaml"
        yield problem(entry.name_span, message, f"leave it out{feed_text}")
    elif entry and value and rows and value > rows:
        message = f"max_spells_contributed is {value}, but a user has at most max_rows_contributed = {rows} row versions"
        yield problem(
            entry.value_span,
            message,
            f"write max_spells_contributed = {rows} or less, or leave it out (the default is {rows})",
        )


def period_of_changes(draft: Draft) -> Iterator[Problem]:
    """Reject a duration as contribution period where it is no number of triggers, or where units are counted, who are present across periods."""
    entry = draft.entry("contribution_period")
    period_us = draft.value("contribution_period")
    interval_us = draft.value("trigger_interval")
    if entry is None or not isinstance(period_us, int) or not _is_feed(draft):
        return
    if period_us < 1 or (interval_us and period_us % interval_us):
        longer_us = (
            (max(period_us, 0) // interval_us + 1) * interval_us if interval_us else UNITS_US["day"]
        )
        yield problem(
            entry.value_span,
            "A contribution period is a multiple of trigger_interval",
            f"write contribution_period = '{show_duration(longer_us)}'",
        )
    stream = "write contribution_period = STREAM, or leave it out"
    for call in draft.calls:
        if call.function is AggregateFunction.COUNT_DISTINCT_UNIT:
            yield problem(
                call.item.span,
                "Units are counted with contribution_period = STREAM only: they are present across contribution periods",
                stream,
            )
    min_units = draft.entry("min_privacy_units_per_group")
    if min_units and draft.value(min_units.name) > 1:
        yield problem(
            min_units.value_span,
            "With periods a key's units are counted once per period, so this many may be one unit",
            f"{stream}; or leave min_privacy_units_per_group out",
        )


def duration_of_windows(draft: Draft) -> Iterator[Problem]:
    """Reject a duration as contribution period where rows do not end; a rule of every query."""
    entry = draft.entry("contribution_period")
    is_duration = isinstance(draft.value("contribution_period"), int)
    if entry and is_duration and draft.stream and not _is_feed(draft):
        words = "STREAM" if draft.windowless else "WINDOW or STREAM"
        yield problem(
            entry.value_span,
            f"A duration is for tables whose rows end, and those of {draft.stream.name} do not",
            f"write contribution_period = {words}, or leave it out",
        )


def _is_feed(draft: Draft) -> bool:
    return draft.stream is not None and draft.stream.change_feed is not None


def rows_that_end(draft: Draft) -> Iterator[Problem]:
    """Reject privacy of one event where rows end: a row that is changed or deleted is more than one
    event."""
    if event(draft) and draft.stream and draft.stream.change_feed:
        hint = "declare the row's key as privacy_unit of the source, and write privacy_level = USER"
        yield problem(
            draft.option_span("privacy_level"),
            f"privacy_level EVENT protects a row that stays, and rows of {draft.stream.name} end",
            hint,
        )


def pairs_that_end(draft: Draft) -> Iterator[Problem]:
    """Reject aggregates of two values where rows end."""
    for call in draft.calls if draft.stream and draft.stream.change_feed else ():
        if call.of_pairs:
            message = f"{call.name.upper()} is not yet of tables whose rows end"
            hint = "write AVG or VAR_POP of each value"
            yield problem(call.item.span, message, hint)


def period_of(draft: Draft) -> int | None:
    """Return how long a contribution period of a table whose rows end lasts; None: for ever."""
    period = draft.value("contribution_period")
    return period if isinstance(period, int) else None


FEED_RULES = (
    interval_given,
    change_passed,
    one_row_each,
    spells_of_changes,
    period_of_changes,
    rows_that_end,
    pairs_that_end,
)


# Rules on queries without a window: a table as it is at every `trigger_interval`. Mechanisms
# that take such queries bring them.


def start_declared(draft: Draft) -> Iterator[Problem]:
    """Reject a stream without a declared start: the first record must not tell where to begin."""
    entry = draft.entry("trigger_interval")
    stream = draft.stream
    if entry and stream and stream.start_us is None:
        message = f"Without a window triggers are counted from the start of the stream, and the source {stream.name} declares no start"
        yield problem(entry.value_span, message, stream.declared("start", "2026-01-01"))


def event_time_passed(draft: Draft) -> Iterator[Problem]:
    """Reject an event time that is not the source's, straight from it, as in a query with a window."""
    stream = draft.stream
    if stream is None or draft.once or draft.scope.is_unknown:
        return
    span = _from_span(draft)
    if stream.event_time is None:
        yield problem(
            span,
            f"The source {stream.name} declares no event time",
            stream.declared("event_time", "ts"),
        )
        return
    fields = draft.scope.find(exp.column(stream.event_time))
    if [field.origin for field in fields] != [(stream.name, stream.event_time)]:
        message = f"The event time may not be computed or renamed: FROM does not pass `{stream.event_time}` on as {stream.name} has it"
        yield problem(
            span,
            message,
            f"select {stream.event_time} itself in the sub-query, under its own name and once",
        )
    elif kind := _wrong_type(draft, fields[0].type):
        yield _no_time(draft, span, stream.event_time, kind)


def keys_grouped(draft: Draft) -> Iterator[Problem]:
    """Reject keys without any GROUP BY, where no window has to be added to it."""
    is_grouped = draft.select.args.get("group") is not None
    for item in draft.keys if draft.windowless and not is_grouped else ():
        yield problem(
            item.span,
            "This is neither an aggregate nor in GROUP BY",
            f"add GROUP BY {item.name or item.sql}, or leave it out",
        )


def stream_period(draft: Draft) -> Iterator[Problem]:
    """Reject an allowance that renews, where there is no window that it could renew with."""
    entry = draft.entry("contribution_period")
    is_window = draft.value("contribution_period") == ContributionPeriod.WINDOW
    if entry and draft.windowless and is_window:
        message = "The query has no window that a contribution period could be as long as"
        duration_text = ", or a duration like '30 days'" if _is_feed(draft) else ""
        yield problem(
            entry.value_span,
            message,
            f"write contribution_period = STREAM{duration_text}, or leave it out",
        )


def nothing_late(draft: Draft) -> Iterator[Problem]:
    """Reject lateness where no window closes."""
    entry = draft.entry("allowed_lateness")
    lateness = draft.value("allowed_lateness")
    if entry and draft.windowless and lateness:
        message = f"Without a window nothing is late: allowed_lateness = {show_duration(lateness)} has no meaning"
        next_trigger = ": a late record counts from the next trigger on"
        yield problem(entry.name_span, message, f"leave it out{'' if draft.once else next_trigger}")


ONE_RELEASE = "a one-time release"


def several_releases(draft: Draft) -> Iterator[Problem]:
    """Reject options on triggers, on several windows and on the paper's mechanisms in a one-time release."""
    has_meaning = {
        "max_triggers": False,
        "carry_windows": draft.value("carry_windows") == 1,
        "mechanism": False,
    }
    for name in has_meaning if draft.once else ():
        entry = draft.entry(name)
        if entry and not has_meaning[name]:
            message = f"The option {name} is not supported in {ONE_RELEASE}"
            yield problem(entry.name_span, message, "omit it")


WINDOWLESS_RULES = (keys_grouped, stream_period, nothing_late, several_releases)
TABLE_RULES = (start_declared, event_time_passed, *WINDOWLESS_RULES)
