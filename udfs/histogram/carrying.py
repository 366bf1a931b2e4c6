"""A tick where windows prove keys together: known keys are shown whatever has records, and every window ends with a review.

What one window shows decides what the next ones do, so a tick goes through its grid in order of time. At a grid point: known keys enter the windows
that have their first trigger; own tests of silent keys in all open windows; at the last trigger of a window its evidence, the review and the tests over
several windows; then every key that has become known is shown in all open windows.

A pass goes over many grid points: up to the next last trigger of a window, or the first time at which an own test passes while several windows are
open. Before its end no key becomes known or silent. Then known keys enter windows, groups are tested and shown, and increments fall due by window and
trigger alone, with noise of the same cells: no group sees another one, or how its triggers are cut. So one pass is as many of one grid point each, and
one tick over many windows the same as many ticks. Its work goes with windows that have groups, known keys or evidence, not with the time between.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import Bool, Int, match, read_columns, run_starts, sort_order
from dpsql.udfs.grid import NO_CLOCK, Grid
from dpsql.udfs.histogram.group_state import (
    Closing,
    ReleaseState,
    add_groups,
    close_state,
    empty_state,
    new_groups,
    open_closing,
    with_values,
)
from dpsql.udfs.histogram.key_selection import SelectionParameters, advance_to, predict, select
from dpsql.udfs.histogram.memory import SILENT, CarriedParameters, Evidence, Memory, Review
from dpsql.udfs.histogram.parameters import ReleaseParameters
from dpsql.udfs.histogram.perturbation import perturb, released_rows
from dpsql.udfs.measure.output_columns import released_columns
from dpsql.udfs.noise.randomness import tags
from dpsql.udfs.stage import CLOSED


def close(
    state: ReleaseState, closed_us: int, p: ReleaseParameters, noise_key: bytes
) -> tuple[ReleaseState, pa.Table]:
    """Close every grid point up to closed_us; the new state, and the rows, sorted by (window, trigger, key bytes)."""
    selection = p.selection
    if (
        selection is None
        or selection.window_tests is None
        or state.memory is None
        or state.evidence is None
    ):
        raise ValueError("this plan carries nothing over")
    memory = Memory.from_table(state.memory)
    evidence = Evidence.from_table(state.evidence)
    ahead = _Ahead.from_state(state)
    work = _Work(p, selection, selection.window_tests, noise_key)
    closed_until = state.closed_us
    reach = p.grid.horizon
    released = [released_columns(p.columns, with_quantiles=False).empty_table()]
    open_state = replace(
        ahead.take_until(NO_CLOCK),
        groups=_closed(ahead.groups.slice(0, 0), closed_until),
        seen=state.seen,
    )
    while True:
        oldest = (
            open_state.groups if open_state.groups.num_rows else ahead.groups.slice(ahead.group)
        )
        first = oldest["window"][0].as_py() if oldest.num_rows else None
        until = _next(p.grid, closed_until, closed_us, first, bool(len(memory.key)), reach)
        if until is None:
            break
        entering = ahead.take_until(until - p.grid.trigger_us)
        open_state = _enter(open_state, entering, closed_until)
        open_state, memory, evidence, rows, closed_until = work.pass_(
            open_state, memory, evidence, closed_until, until
        )
        released.append(rows)
        # After a pass that was made again the next ones begin short: what is done twice stays a part of what is done once.
        reach = min(2 * reach, p.grid.horizon) if closed_until == until else 1
    new_state = replace(
        _enter(open_state, ahead.take_until(1 << 62), closed_us),
        memory=memory.table(),
        evidence=evidence.table(),
    )
    # The order of passes, and of groups that begin late, must not be seen.
    return new_state, pa.concat_tables(released).combine_chunks().sort_by(
        [(name, "ascending") for name in ("window", "trigger", "key_bytes")]
    )


@dataclass
class _Ahead:
    """Groups and pending increments by window, of which a pass takes those that have begun: an archive's windows are not opened over and over."""

    groups: pa.Table
    pending: pa.Table
    of_groups: Int
    of_pending: Int
    group: int = 0
    row: int = 0

    @classmethod
    def from_state(cls, state: ReleaseState) -> _Ahead:
        """Return the groups and increments of a state, ahead of their release."""
        pending = state.pending
        order = sort_order(pending["window"].to_numpy())
        pending = pending.take(order).combine_chunks()
        return cls(
            state.groups, pending, state.groups["window"].to_numpy(), pending["window"].to_numpy()
        )

    def take_until(self, latest: int) -> ReleaseState:
        """Take groups and increments of windows that start at `latest` or before."""
        group, row = (
            int(np.searchsorted(column, latest, side="right"))
            for column in (self.of_groups, self.of_pending)
        )
        slices = (
            self.groups.slice(self.group, group - self.group),
            self.pending.slice(self.row, row - self.row),
        )
        self.group = max(group, self.group)
        self.row = max(row, self.row)
        return ReleaseState(*slices, self.groups.slice(0, 0))


def _enter(state: ReleaseState, entering: ReleaseState, closed_us: int) -> ReleaseState:
    """Add the groups and increments of windows that begin."""
    groups = pa.concat_tables([state.groups, entering.groups]).combine_chunks()
    pending = pa.concat_tables([state.pending, entering.pending]).combine_chunks()
    return replace(state, groups=_closed(groups, closed_us), pending=pending)


def _closed(groups: pa.Table, closed_us: int) -> pa.Table:
    return groups.replace_schema_metadata({CLOSED: str(closed_us)})


def _next(
    grid: Grid, closed_until: int, limit: int, first: int | None, busy: bool, reach: int
) -> int | None:
    """Return up to when the next pass goes; None: nothing is left to do up to `limit`.

    Args:
        grid: of the plan.
        closed_until: up to when all is closed.
        limit: of the tick.
        first: the oldest window with a group.
        busy: keys are remembered, so every window has a review.
        reach: over so many grid points at most.
    """
    if not busy and first is None:
        return None
    begins = closed_until if busy else max(closed_until, (first or 0) + grid.trigger_us - 1)
    span = grid.horizon * grid.trigger_us
    since = begins - grid.offset_us
    end = (since - span) // grid.slide_us * grid.slide_us + grid.slide_us + span
    points = min(
        since // grid.trigger_us + reach,
        end // grid.trigger_us,
        (limit - grid.offset_us) // grid.trigger_us,
    )
    until = grid.offset_us + points * grid.trigger_us
    return until if until > begins else None


@dataclass(frozen=True)
class _Work:
    p: ReleaseParameters
    selection: SelectionParameters
    window_tests: CarriedParameters
    noise_key: bytes

    def pass_(
        self, state: ReleaseState, memory: Memory, evidence: Evidence, closed_until: int, until: int
    ) -> tuple[ReleaseState, Memory, Evidence, pa.Table, int]:
        """Pass from one time to the next at which something changes: `until`, or earlier; it comes last."""
        p = self.p
        grid = self.p.grid
        initial = state
        state = self._show_known(state, memory, closed_until, until)
        names = state.groups["key_bytes"]
        c, pending = self._open(state, until)
        to_release = select(c, self.selection, self.noise_key)
        passed_keys, passed_names, since = self._passed_keys(c, names, memory)
        several = grid.horizon * grid.trigger_us > grid.window_us  # windows are open at a time
        if several and (earliest := int(since.min(initial=until))) < until:
            return self.pass_(initial, memory, evidence, closed_until, earliest)
        memory = memory.with_keys(passed_keys, passed_names, self.window_tests.first).learnt(
            passed_keys, since
        )
        new_keys = passed_keys
        ended = until - grid.horizon * grid.trigger_us
        if (ended - grid.offset_us) % grid.slide_us == 0:
            memory, evidence, proven = self._end(c, names, memory, evidence, ended, until)
            new_keys = np.concatenate([passed_keys, proven])
        extra = self._show_new_keys(c, to_release, memory, new_keys, until)
        predict(c, self.selection, self.noise_key)
        rows = [
            released_rows(
                perturb(c, to_release, p.perturbations, self.noise_key), c.groups, names, p.columns
            )
        ]
        state = replace(close_state(c, names, pending, until, grid, p.layout), seen=state.seen)
        if extra.num_rows:
            extra_groups, extra_rows = self._extra(extra, until)
            rows.append(extra_rows)
            state = replace(state, groups=add_groups(state.groups, extra_groups))
        return state, memory, evidence, pa.concat_tables(rows), until

    def _open(self, state: ReleaseState, until: int) -> tuple[Closing, pa.Table]:
        groups = state.groups
        tag = tags(self.noise_key, *read_columns(groups, ("window", "key")))
        return open_closing(state, until, self.p.grid, self.p.layout, tag)

    def _show_known(
        self, state: ReleaseState, memory: Memory, closed_until: int, until: int
    ) -> ReleaseState:
        """Put known keys into every window that has its first trigger in this pass, as public groups are."""
        known_rows = np.flatnonzero(memory.is_known)
        if not len(known_rows):
            return state
        windows = self.p.grid.windows_opening(closed_until, until)
        if not len(windows):
            return state
        groups = state.groups
        present = np.flatnonzero(np.isin(groups["window"].to_numpy(), windows))
        present = present[memory.known_since(groups["key"].to_numpy()[present]) != SILENT]
        for name in ("first", "selected_at"):
            groups = with_values(groups, name, present, 1)
        window = np.repeat(windows, len(known_rows))
        key = np.tile(memory.key[known_rows], len(windows))
        missing = match([window, key], read_columns(groups, ("window", "key"))) < 0
        names = memory.names.take(np.tile(known_rows, len(windows))[missing])
        return replace(
            state,
            groups=add_groups(
                groups,
                self._groups(
                    window[missing], key[missing], names, np.ones(int(missing.sum()), np.int64)
                ),
            ),
        )

    def _groups(self, window: Int, key: Int, names: pa.Array, trigger: Int) -> pa.Table:
        """Return groups that are shown from a trigger on, without a record so far."""
        groups = new_groups(self.p.layout, window, key, names, trigger)
        return groups.set_column(
            groups.column_names.index("selected_at"), "selected_at", pa.array(trigger)
        )

    def _passed_keys(
        self, c: Closing, names: pa.ChunkedArray, memory: Memory
    ) -> tuple[Int, pa.Array, Int]:
        """Return the silent keys whose own test has passed in this pass, their names, and when."""
        g = c.groups
        hit = np.flatnonzero(
            (g["selected_at"] > c.closed_before) & (memory.known_since(g["key"]) == SILENT)
        )
        hit = hit[sort_order(g["key"][hit], g["window"][hit])]
        hit = hit[run_starts(g["key"][hit])]
        since = g["window"][hit] + g["selected_at"][hit] * self.p.grid.trigger_us
        return g["key"][hit], names.take(hit).combine_chunks(), since

    def _end(
        self,
        c: Closing,
        names: pa.ChunkedArray,
        memory: Memory,
        evidence: Evidence,
        window: int,
        ends_us: int,
    ) -> tuple[Memory, Evidence, Int]:
        """End a window at its last trigger: its groups become evidence, known keys are reviewed, silent ones tested over several windows."""
        grid = self.p.grid
        window_tests = self.window_tests
        review = self._review(window, ends_us)
        ended = np.flatnonzero((c.groups["window"] == window) & (c.groups["users"] > 0))
        ended = ended[memory.epoch_of(c.groups["key"][ended], window_tests.first) <= window]
        evidence = evidence.plus(self._evidence(c, ended, memory, review))
        memory = memory.with_keys(
            c.groups["key"][ended], names.take(ended).combine_chunks(), window_tests.first
        )
        proven, dropped = review.tests(memory, evidence)
        proven_keys = memory.key[proven]
        memory = memory.learnt(proven_keys, np.full(len(proven_keys), ends_us))
        # The first window that begins at or after the review.
        memory = memory.dropped(dropped, grid.first_window_from(ends_us))
        oldest = window - (window_tests.windows - 2) * grid.slide_us
        evidence = evidence.select(
            (evidence.window >= oldest)
            & (evidence.window >= memory.epoch_of(evidence.key, window_tests.first))
        )
        # A dropped key is remembered until no range reaches back to before its epoch.
        recent = (memory.epoch > oldest) & (memory.epoch != window_tests.first)
        return (
            memory.select(memory.is_known | recent | np.isin(memory.key, evidence.keys)),
            evidence,
            proven_keys,
        )

    def _review(self, window: int, ends_us: int) -> Review:
        return Review(
            window,
            self.p.grid.slide_us,
            ends_us,
            self.window_tests,
            self.selection.counter,
            self.selection.sigma,
            self.selection.min_users,
            self.noise_key,
        )

    def _evidence(self, c: Closing, ended: Int, memory: Memory, review: Review) -> Evidence:
        """Return the evidence of groups with a record. A key that was known when its window began has one word, every other group its path: never both."""
        window = c.groups["window"][ended]
        key = c.groups["key"][ended]
        since = memory.known_since(key)
        path = (since == SILENT) | (since > window)
        advance_to(c, ended[path], self.p.grid.horizon, self.selection, self.noise_key)
        noise = np.zeros(len(ended))
        noise[path] = c.groups["noise"][ended[path], 0]
        noise[~path] = review.words(window[~path], key[~path])
        return Evidence(key, window, c.groups["weight"][ended], c.groups["users"][ended], noise)

    def _show_new_keys(
        self, c: Closing, to_release: list[Int], memory: Memory, new_keys: Int, until: int
    ) -> pa.Table:
        """Show keys that have become known in all open windows, now: groups that are there in `to_release`, others returned."""
        grid = self.p.grid
        g = c.groups
        oldest = grid.first_window_from(until - grid.horizon * grid.trigger_us)
        oldest = max(oldest, self.window_tests.first)
        windows = np.arange(oldest, until - grid.trigger_us + 1, grid.slide_us)
        rows = match([np.sort(new_keys)], [memory.key])
        window = np.repeat(windows, len(new_keys))
        memory_row = np.tile(rows, len(windows))
        key = memory.key[memory_row]
        group = match([window, key], [g["window"], g["key"]])
        closed_triggers = grid.closed_triggers(window, until)
        is_unselected = group >= 0
        is_unselected[is_unselected] = g["selected_at"][group[is_unselected]] == 0
        for trigger in np.unique(closed_triggers[is_unselected]).tolist():
            newly_shown = group[is_unselected & (closed_triggers == trigger)]
            g["first"][newly_shown] = np.minimum(g["first"][newly_shown], trigger)
            g["selected_at"][newly_shown] = trigger
            to_release.extend([np.zeros(0, np.int64)] * (trigger + 1 - len(to_release)))
            to_release[trigger] = np.concatenate([to_release[trigger], newly_shown])
        missing: Bool = group < 0
        return self._groups(
            window[missing],
            key[missing],
            memory.names.take(memory_row[missing]),
            closed_triggers[missing],
        )

    def _extra(self, groups: pa.Table, until: int) -> tuple[pa.Table, pa.Table]:
        """Close groups that begin in the middle of their window: return those whose window goes on, and their rows."""
        p = self.p
        layout = self.p.layout
        names = groups["key_bytes"]
        c, pending = self._open(
            replace(empty_state(layout), groups=_closed(groups, until - 1)), until
        )
        to_release = [np.flatnonzero(c.closed_now == trigger) for trigger in range(c.last + 1)]
        rows = released_rows(
            perturb(c, to_release, p.perturbations, self.noise_key), c.groups, names, p.columns
        )
        return close_state(c, names, pending, until, p.grid, layout).groups, rows
