"""Cells of a table, and columns of quantiles, of which each has cells of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpsql.description import Published, Role
from dpsql.published.public_rows import PublicRows
from dpsql.published.words import MOST_RANK_ERROR, TOO_FEW, is_rough
from dpsql.text import Z95, percent
from dpsql.view.drawings import NO_DRAWING, Drawing, strips
from dpsql.view.words import absent, bounds_of, null_of_quantiles, printable, quantile_texts

NONE = -1e300
"""The size of a NULL: below all."""


@dataclass(frozen=True)
class Cell:
    """A released value, remarks on it, its drawing and its way there.

    `size` orders the column; `small`: the value is below its own error; `has_changed`: clearly, since the window before; `place`: as that of a
    row, where rows are ordered by this column.
    """

    text: str
    size: float
    small: bool
    remarks: tuple[str, ...] = ()
    interval: Drawing = NO_DRAWING
    trend: Drawing = NO_DRAWING
    has_changed: bool = False
    place: str = ""


@dataclass(frozen=True)
class Head:
    """The head of a column: the aggregate, what stands below it (what the bounds cap, or which quantile), whether its cells have drawings, and of which
    records its places are, in words."""

    name: str
    detail: str
    has_drawings: bool = True
    among: str = ""


MOST_QUANTILES = 9
FEW_RANKS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles in a table, and those of which it has columns where there are more."""


@dataclass(frozen=True)
class _Quantiles:
    """The quantiles of a row with their texts, and what is said of their ranks, which are off by `rank_error`."""

    values: Sequence[float]
    texts: Sequence[str]
    rank_text: str
    rank_error: float
    is_rough: bool

    def cell(self, rank: int, drawing: Drawing) -> Cell:
        """Return the cell of one of them."""
        if not self.texts:
            return Cell("–", NONE, True)
        return Cell(self.texts[rank], self.values[rank], self.is_rough, interval=drawing)


def _quantiles(row: Mapping[Any, Any], name: str, published: Published) -> _Quantiles:
    """Return the quantiles of a row; none where they say nothing."""
    answer = row[name]
    rank_error = Z95 * row[published.columns_of(name, Role.RANK_STDERR)[0]]
    if absent(answer) or absent(rank_error):
        return _Quantiles((), (), null_of_quantiles(row, published), 1.0, True)
    if rank_error >= MOST_RANK_ERROR:
        return _Quantiles((), (), TOO_FEW, 1.0, True)
    rough = is_rough(answer, rank_error)
    mark = "? " if rough else ""
    texts = quantile_texts(answer, rank_error, bounds_of(name, published))
    values = np.atleast_1d(answer).tolist()
    rank_text = f"± {100 * rank_error:.2g}%"
    return _Quantiles(values, [mark + text for text in texts], rank_text, rank_error, rough)


def quantile_columns(name: str, rows: PublicRows) -> list[tuple[Head, list[Cell]]]:
    """Return a column for each quantile between the bounds, which are declared, and one of how far the ranks are off."""
    published = rows.description
    records = rows.frame.to_dict("records")
    answers = [_quantiles(row, name, published) for row in records]
    count = max((np.size(row[name]) for row in records if not absent(row[name])), default=0)
    ranks = [*range(1, count - 1)] or [*range(count)]
    if len(ranks) > MOST_QUANTILES:
        ranks = [round(share * (count - 1)) for share in FEW_RANKS]
    inner = [np.array(answer.values)[ranks if answer.texts else []] for answer in answers]
    drawings = strips(inner) if count > 1 else [NO_DRAWING] * len(answers)
    columns = []
    for rank in ranks:
        is_last = rank == ranks[-1] and count > 1
        detail = percent(rank / (count - 1)) if count > 1 else ""
        cells = [
            answer.cell(rank, drawing if is_last else NO_DRAWING)
            for answer, drawing in zip(answers, drawings, strict=True)
        ]
        columns.append((Head(printable(name), detail, is_last), cells))
    rank_cells = [Cell(answer.rank_text, answer.rank_error, answer.is_rough) for answer in answers]
    return [*columns, (Head(printable(name), "ranks", False), rank_cells)]
