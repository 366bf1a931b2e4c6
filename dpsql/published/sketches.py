"""A published sketch: the count of any value, with its error, from the public table of cells alone: no secret, no ledger, no private file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.description import SketchShape
from dpsql.errors import DataError, LakeError
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.runs import Lake, cells_path
from dpsql.published.public_rows import described, readable
from dpsql.times import EPOCH, timestamp
from dpsql.udfs.columns import Int
from dpsql.udfs.keys import encode
from dpsql.udfs.sketch.estimates import estimate, interval, joint
from dpsql.udfs.sketch.hashing import DIGEST_BYTES, SCHEME, CellShape, digest, digests

if TYPE_CHECKING:
    import pandas as pd

CellReader = Callable[[Sequence[str] | None, pc.Expression], pa.Table]
"""Reads some columns of the rows of cells that meet a condition."""

INTEGERS = ("tinyint", "smallint", "int", "bigint")


@dataclass(frozen=True, eq=False)
class PublishedSketch:
    """The cells of one window at one trigger, or of several windows together.

    Args:
        shape: of the table.
        start, end, released: of the windows, microseconds since 1970 UTC.
        trigger: of the newest window.
        number: which of the table's sketches.
        cells: (depth, width), in steps of the grid.
        hash_key: of the windows.
        cell_sd: standard deviation of a cell's noise, in value units.
    """

    shape: SketchShape
    start: int
    end: int
    released: int
    trigger: int
    number: int
    cells: Int
    hash_key: bytes
    cell_sd: float

    @property
    def noise_sd(self) -> float:
        """Standard deviation of the noise of an estimate; collisions come on top."""
        return self.cell_sd * self.shape.stderr

    def estimate(self, values: Iterable[Any]) -> pd.DataFrame:
        """Return how often each value came, or what it adds up to.

        Args:
            values: of the type that is counted; tuples where it is several columns; texts are read as that type.

        Returns:
            `value, count` (`sum` of a weighted sketch), `stderr` of the noise alone, and `low, high`, which hold the true number with
            probability 0.95, with collisions and what the one-cell rule leaves out, for a value that was named before looking.

        Raises:
            DataError: a value is not of the type.
        """
        import pandas as pd

        value_list = list(values)
        layout = self._layout
        scores = layout.scores(self.cells, layout.fields(self.hash_key, self._digests(value_list)))
        return pd.DataFrame({"value": value_list, **self._numbers(estimate(layout, scores))})

    def top(self, candidates: Iterable[Any], k: int) -> pd.DataFrame:
        """Return the k largest of some values, estimated together. Values without a record come out as noise: name those that are there."""
        import pandas as pd

        value_list = list(dict.fromkeys(candidates))
        layout = self._layout
        fields = layout.fields(self.hash_key, self._digests(value_list))
        estimates = (
            joint(layout, self.cells, fields)
            if layout.signed
            else estimate(layout, layout.scores(self.cells, fields)).astype(np.float64)
        )
        best = np.argsort(-estimates, kind="stable")[:k]
        numbers = self._numbers(np.rint(estimates[best]).astype(np.int64))
        return pd.DataFrame({"value": [value_list[i] for i in best.tolist()], **numbers})

    @property
    def _layout(self) -> CellShape:
        return CellShape(self.shape.depth, self.shape.width, self.shape.signed)

    def _numbers(self, estimates: Int) -> dict[str, Any]:
        grid = self.shape.grids[self.number]
        low, high = interval(self._layout, self.cells, estimates, self.shape.missed)
        numbers: dict[str, Any] = {"sum": estimates * grid, "low": low * grid, "high": high * grid}
        if self.shape.counts[self.number]:
            numbers = {
                "count": estimates,
                "low": np.floor(low).astype(np.int64),
                "high": np.ceil(high).astype(np.int64),
            }
        name = next(iter(numbers))
        return {
            name: numbers.pop(name),
            "stderr": np.full(len(estimates), self.noise_sd),
            **numbers,
        }

    def _digests(self, values: Sequence[Any]) -> Int:
        encoded = [encode(self._encoded(value)) for value in values]
        return digests(pa.array([digest(each) for each in encoded], pa.binary(DIGEST_BYTES)))

    def _encoded(self, value: Any) -> list[bytes | None]:
        parts = (
            [value]
            if len(self.shape.value) == 1
            else list(value)
            if isinstance(value, list | tuple)
            else []
        )
        if len(parts) != len(self.shape.value):
            names = ", ".join(path.rpartition(".")[2] for path, _ in self.shape.value)
            raise DataError(
                f"a value has {len(self.shape.value)} parts ({names}): give a list of them"
            )
        return [
            _value_bytes(part, kind)
            for part, (_, kind) in zip(parts, self.shape.value, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class ReleasedCells:
    """The cells of all windows and triggers that were released.

    Args:
        shape: of their table.
        rows: as they are published.
    """

    shape: SketchShape
    rows: pa.Table

    def sketch(self, window_us: int | None = None, alias: str | None = None) -> PublishedSketch:
        """Return the sketch of one window; arguments and errors as in `open_sketch`."""
        number = _number(self.shape, alias)
        chosen = _chosen(_windows(self._rows_where), self.shape, "the query", window_us, None)
        return _sum_of_windows(self._rows_where, self.shape, number, chosen, None)

    def _rows_where(self, columns: Sequence[str] | None, condition: pc.Expression) -> pa.Table:
        return self.rows.filter(condition).select(columns or self.rows.column_names)


def open_sketch(
    lake: Lake,
    name: str,
    window_us: int | None = None,
    *,
    until_us: int | None = None,
    trigger: int | None = None,
    alias: str | None = None,
) -> PublishedSketch:
    """Read a published sketch.

    Args:
        lake, name: of the query.
        window_us: start of the window; None: the newest one that is finished, or, where none is, the newest.
        until_us: also all later windows that end by then, added up.
        trigger: None: the newest.
        alias: which sketch; None: the first.

    Raises:
        LakeError: there is no such sketch, window or trigger, or it cannot be read.
    """
    with readable(path := cells_path(lake.histogram(name))):
        if not (path / "_delta_log").is_dir():
            raise LakeError(f"query {name!r} has no published sketch in lake {lake.root}")
        shape = described(path).sketch
        if shape is None or shape.hash_scheme != SCHEME:
            raise LakeError(
                f"{path}: another release of dpsql wrote it; this one reads sketches of {SCHEME}"
            )
        reader = partial(read_rows, path)
        number = _number(shape, alias)
        chosen = _chosen(_windows(reader), shape, f"query {name!r}", window_us, until_us)
        return _sum_of_windows(reader, shape, number, chosen, trigger)


def _number(shape: SketchShape, alias: str | None) -> int:
    alias = shape.aliases[0] if alias is None else alias
    if alias not in shape.aliases:
        raise LakeError(
            f"there is no sketch {alias!r}: the sketches are {', '.join(shape.aliases)}"
        )
    return shape.aliases.index(alias)


def _windows(reader: CellReader) -> list[tuple[int, int, int, int]]:
    """Return (start, end, newest trigger, its time) of every window."""
    rows = reader(["window_start", "window_end", "trigger", "trigger_time"], pc.field("row") == 0)
    newest = rows.group_by(["window_start", "window_end"]).aggregate(
        [("trigger", "max"), ("trigger_time", "max")]
    )
    columns = ("window_start", "window_end", "trigger_max", "trigger_time_max")
    return sorted(
        zip(*(newest[name].cast(pa.int64()).to_pylist() for name in columns), strict=True)
    )


def _chosen(
    windows: list[tuple[int, int, int, int]],
    shape: SketchShape,
    subject: str,
    window_us: int | None,
    until_us: int | None,
) -> list[tuple[int, int, int, int]]:
    if not windows:
        when = " when it closes" if shape.by_window else ""
        raise LakeError(f"{subject} has published no sketch yet: a window's is published{when}")
    if until_us is not None:
        if shape.by_window:
            raise LakeError(
                "every window has a hash key of its own, so windows cannot be added up: ask for each"
            )
        chosen = [
            window
            for window in windows
            if window[0] >= (window_us or windows[0][0]) and window[1] <= until_us
        ]
        if any(a[1] > b[0] for a, b in pairwise(chosen)):
            raise LakeError("these windows overlap, so they cannot be added up: ask for each")
        if not chosen:
            raise LakeError(f"{subject} has published no window between these times")
        return chosen
    if window_us is None:
        clock = max(window[3] for window in windows)
        return [max([window for window in windows if window[1] <= clock] or windows)]
    chosen = [window for window in windows if window[0] == window_us]
    if not chosen:
        when = f" (the newest is that of {timestamp(windows[-1][0])})" if shape.by_window else ""
        raise LakeError(
            f"{subject} has published no sketch of this window"
            + (f": it is published when it closes{when}" if when else "")
        )
    return chosen


def _sum_of_windows(
    reader: CellReader, shape: SketchShape, number: int, windows: list[Any], trigger: int | None
) -> PublishedSketch:
    cells = np.zeros((shape.depth, shape.width), np.int64)
    variance = 0.0
    hash_key = b""
    for start, _, newest, _ in windows:
        trigger_number = newest if trigger is None else trigger
        begins = pc.field("window_start") == pa.scalar(start, pa.int64()).cast(
            pa.timestamp("us", tz="UTC")
        )
        low = number * shape.depth
        high = (number + 1) * shape.depth
        in_sketch = (pc.field("row") >= low) & (pc.field("row") < high)
        is_of_trigger = pc.field("trigger") == trigger_number
        rows = reader(None, begins & in_sketch & is_of_trigger).sort_by("row")
        if not rows.num_rows:
            raise LakeError(
                f"the sketch of the window {timestamp(start)} was not published at trigger {trigger_number}"
            )
        cells += rows["cells"].combine_chunks().flatten().to_numpy().reshape(cells.shape)
        hash_key = rows["hash_key"][0].as_py()
        variance += shape.sd[number][trigger_number - 1] ** 2
    last = windows[-1]
    trigger_number = last[2] if trigger is None else trigger
    return PublishedSketch(
        shape,
        windows[0][0],
        last[1],
        last[3],
        trigger_number,
        number,
        cells,
        hash_key,
        math.sqrt(variance),
    )


def _value_bytes(value: Any, kind: str) -> bytes | None:
    """Return one part of a value as records have it (docs/architecture.md, canonical encoding)."""
    if value is None:
        return None
    try:
        return _bytes_of(value, kind)
    except (ValueError, TypeError, InvalidOperation):
        raise DataError(
            f"what is counted has the type {kind.upper()}, and a value that was given is none"
        ) from None


def _bytes_of(value: Any, kind: str) -> bytes:
    if kind == "binary":
        return bytes.fromhex(value) if isinstance(value, str) else bytes(value)
    if kind == "boolean":
        if str(value).lower() not in ("true", "false"):
            raise ValueError
        return str(value).lower().encode()
    if kind in INTEGERS:
        return str(int(value)).encode()
    if kind == "date":
        day = date.fromisoformat(value) if isinstance(value, str) else value
        return str((date(day.year, day.month, day.day) - EPOCH.date()).days).encode()
    if kind == "timestamp":
        time = datetime.fromisoformat(value) if isinstance(value, str) else value
        since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - EPOCH
        return str((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds).encode()
    if kind.startswith("decimal"):
        scale = int(kind.rstrip(")").rpartition(",")[2])
        return f"{Decimal(str(value)).quantize(Decimal(1).scaleb(-scale)):f}".encode()
    return str(value).encode()


__all__ = ["PublishedSketch", "ReleasedCells", "open_sketch"]
