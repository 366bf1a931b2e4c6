"""The two pure steps: which units are new in a window; how many there were, once, with noise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import match, run_starts, run_sums, sort_order
from dpsql.udfs.grid import NO_CLOCK, Grid
from dpsql.udfs.keys import PublicGroups
from dpsql.udfs.noise.randomness import normals, tags
from dpsql.udfs.stage import (
    ADMISSION,
    CLOSED,
    NO_RECORD,
    RELEASE,
    Clock,
    Stepped,
    Tables,
    Tick,
    closed_us,
)
from dpsql.udfs.state_table import StateTable

INT = pa.int64()
CONTRIBUTIONS = pa.schema(
    [("window", INT), ("trigger", INT), ("key", INT), ("key_bytes", pa.binary()), ("units", INT)]
)
DROPS = (*NO_RECORD, "too_far_ahead", "window_closed")


@dataclass(frozen=True)
class ToyIntake:
    """Records to numbers of new units per window."""

    grid: Grid
    public: PublicGroups
    operator: ClassVar[str] = ADMISSION
    tables: ClassVar[Mapping[str, StateTable]] = {"seen": StateTable(("window", "user"), "user")}
    takes: ClassVar[pa.Schema] = pa.schema(
        [("drop", pa.int8()), ("user", INT), ("ts", INT), ("key", INT), ("key_bytes", pa.binary())]
    )
    gives: ClassVar[pa.Schema] = CONTRIBUTIONS

    def empty(self) -> Tables:
        return {"seen": pa.table({"window": pa.array([], INT), "user": pa.array([], INT)})}

    def for_bucket(self, bucket: int, buckets: int) -> Self:
        return self

    def step(self, state: Tables, rows: pa.Table, now: Clock, noise_key: bytes) -> Stepped:
        code, ts, user = (rows[name].to_numpy() for name in ("drop", "ts", "user"))
        window = self.grid.latest_window(ts)
        closed = (window + self.grid.window_us <= now.closed_us) | (
            window < self.public.first_window_us
        )
        reason = np.where(code > 0, code, np.where(ts > now.latest_us, 5, np.where(closed, 6, 0)))
        drops = {name: int((reason == number).sum()) for number, name in enumerate(DROPS, start=1)}
        window = window[reason == 0]
        user = user[reason == 0]
        known = [state["seen"][name].to_numpy() for name in ("window", "user")]
        fresh = match([window, user], known) < 0
        window = window[fresh]
        user = user[fresh]
        order = sort_order(window, user)
        order = order[run_starts(window[order], user[order])]
        window = window[order]
        user = user[order]
        both = [np.concatenate(pair) for pair in zip(known, (window, user), strict=True)]
        kept = [column[both[0] + self.grid.window_us > now.closed_us] for column in both]
        order = sort_order(*kept)
        starts = run_starts(window)
        size = int(starts.sum())
        given = [
            window[starts],
            np.ones(size, np.int64),
            np.full(size, self.public.keys[0]),
            pa.array([b""] * size, pa.binary()),
        ]
        made = pa.table(
            [*given, run_sums(np.ones(len(window), np.int64), starts)], schema=CONTRIBUTIONS
        )
        seen = pa.table({"window": kept[0][order], "user": kept[1][order]})
        return Stepped({"seen": seen}, made, {"drops": {name: n for name, n in drops.items() if n}})


@dataclass(frozen=True)
class ToyRelease:
    """Numbers of units, summed until their window ends; then shown once."""

    grid: Grid
    public: PublicGroups
    sigma: float
    operator: ClassVar[str] = RELEASE
    tables: ClassVar[Mapping[str, StateTable]] = {"pending": StateTable(("window", "key"), "key")}
    takes: ClassVar[pa.Schema] = CONTRIBUTIONS.append(pa.field("batch", INT))
    gives: ClassVar[pa.Schema] = pa.schema(
        [("window", INT), ("trigger", INT), ("key_bytes", pa.binary()), ("c0", INT)]
    )

    def empty(self) -> Tables:
        return {
            "pending": pa.table({name: pa.array([], INT) for name in ("window", "key", "units")})
        }

    def for_bucket(self, bucket: int, buckets: int) -> Self:
        return replace(self, public=self.public.for_bucket(bucket, buckets))

    def step(self, state: Tables, rows: pa.Table, now: Sequence[Tick], noise_key: bytes) -> Stepped:
        before = closed_us(state)
        closed = max([before, *(tick.closed_us for tick in now)])
        # Rows that come after a tick are of windows that it has not closed: all can be added first.
        columns = [
            np.concatenate([state["pending"][name].to_numpy(), rows[name].to_numpy()])
            for name in ("window", "key", "units")
        ]
        order = sort_order(*columns[:2])
        window, key, units = (column[order] for column in columns)
        starts = run_starts(window, key)
        window = window[starts]
        key = key[starts]
        units = run_sums(units, starts)
        shown = np.zeros(0, np.int64)
        if self.public.keys:
            first = (
                self.public.first_window_us
                if before == NO_CLOCK
                else self.grid.latest_window(np.array([before]))[0]
            )
            shown = np.arange(
                max(first, self.public.first_window_us),
                closed - self.grid.window_us + 1,
                self.grid.window_us,
            )
        exact = np.zeros(len(shown), np.int64)
        at = match([shown], [window])
        exact[at >= 0] = units[at[at >= 0]]
        keys = np.full(len(shown), self.public.keys[0] if self.public.keys else 0)
        noise = np.rint(
            self.sigma * normals(noise_key, tags(noise_key, shown, keys), 1, 0, 1)
        ).astype(np.int64)
        ones = np.ones(len(shown), np.int64)
        names = pa.array([b""] * len(shown), pa.binary())
        made = pa.table([shown, ones, names, exact + noise], schema=self.gives)
        rest = window + self.grid.window_us > closed
        pending = pa.table({"window": window[rest], "key": key[rest], "units": units[rest]})
        return Stepped(
            {"pending": pending.replace_schema_metadata({CLOSED: str(closed)})},
            made,
            {"closed_us": closed},
        )
