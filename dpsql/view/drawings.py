"""Drawings made of numbers alone: values with their 95% error, quantiles, and ways through time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpsql.text import Z95

if TYPE_CHECKING:
    from dpsql.udfs.columns import Bool, Float


class Drawing(str):
    """An SVG made of numbers alone, which a template does not escape."""

    __slots__ = ()

    def __html__(self) -> str:
        """Return the SVG as it is: what template engines ask a value that is safe."""
        return str(self)


NO_DRAWING = Drawing()

# Values on a scale that all of them share. Places are shares of the drawing, which a page makes
# as wide as it has room.


def intervals(
    values: Float, stderrs: Float, within: tuple[float, float] | None = None
) -> list[Drawing]:
    """Return one SVG per value, a dot on the line of its 95% error, which a faint line joins with zero or the lower bound; empty where it is not finite.

    Args:
        values, stderrs: of one column.
        within: the bounds of an average, which the scale has; else it has zero.
    """
    low, high = _ends(values, stderrs)
    bases = np.full_like(values, within[0] if within else 0.0)
    shares = _shares(np.stack([values, bases, low, high]), [low, high], within)
    return [
        _svg(
            "interval",
            f'<line class="reach" {_across(base, dot)}/><line {_across(start, end)}/><circle cx="{dot:.1f}%" cy="50%" r="3"/>',
        )
        if np.isfinite(start + end)
        else NO_DRAWING
        for dot, base, start, end in shares.T
    ]


def columns(values: Float, stderrs: Float) -> tuple[list[Drawing], tuple[float, float]]:
    """Return one SVG per value, a column from zero with the line of its 95% error; and the ends of their scale."""
    low, high = _ends(values, stderrs)
    zeros = np.zeros_like(values)
    shares = _shares(np.stack([values, zeros, low, high]), [low, high])
    drawings = [
        _svg(
            "column",
            f'<rect x="15%" width="70%" y="{100 - max(top, zero):.1f}%" height="{abs(top - zero):.1f}%"/>'
            f'<line x1="50%" x2="50%" y1="{100 - start:.1f}%" y2="{100 - end:.1f}%"/>',
        )
        if np.isfinite(start + end)
        else NO_DRAWING
        for top, zero, start, end in shares.T
    ]
    return drawings, _scale([low, high])


def strips(quantiles: Sequence[Float], within: tuple[float, float] | None = None) -> list[Drawing]:
    """Return one SVG per list of quantiles: a bar from the first to the last, a tick at each, a dot at the middle one.

    Args:
        quantiles: lists of one column; an empty one is not drawn.
        within: a range that the scale has; else it has zero.
    """
    values = np.concatenate([[], *quantiles])
    drawings = []
    for numbers in quantiles:
        places = _shares(numbers, [values], within)
        ticks = "".join(f'<line class="tick" {_across(place, place)}/>' for place in places)
        drawings.append(
            _svg(
                "interval strip",
                f'<line {_across(places[0], places[-1])}/>{ticks}<circle cx="{places[len(places) // 2]:.1f}%" cy="50%" r="3"/>',
            )
            if len(numbers)
            else NO_DRAWING
        )
    return drawings


def _ends(values: Float, stderrs: Float) -> tuple[Float, Float]:
    """Return the ends of 95% intervals."""
    return values - Z95 * stderrs, values + Z95 * stderrs


def _scale(
    numbers: Sequence[Float], within: tuple[float, float] | None = None
) -> tuple[float, float]:
    """Return the ends of a scale that has some numbers, and `within` or zero."""
    values = np.concatenate([within or (0.0, 0.0), *numbers])
    finite_values = values[np.isfinite(values)]
    return float(finite_values.min()), float(finite_values.max())


def _shares(
    values: Float, numbers: Sequence[Float], within: tuple[float, float] | None = None
) -> Float:
    """Return where values are on the scale of some numbers, in percent."""
    low, high = _scale(numbers, within)
    return np.asarray(2 + 96 * (values - low) / max(high - low, 1e-300))


def _across(start: float, end: float) -> str:
    return f'x1="{start:.1f}%" x2="{end:.1f}%" y1="50%" y2="50%"'


def _svg(name: str, shapes: str) -> Drawing:
    return Drawing(f'<svg class="{name}" aria-hidden="true">{shapes}</svg>')


# A key's way through time: the band of its error, the line, and a dot for each point if they are
# few. A page stretches it; lines keep their width.

WIDTH = 1_000
HEIGHT = 200
MARGIN = 8
MOST_DOTS = 60
MOST_POINTS = 60
"""Points of the small line in a table."""


def trend(triggers: Float, values: Float, stderrs: Float, horizon: int) -> Drawing:
    """Return the small line of a table.

    Args:
        triggers: numbers of the triggers at which the key was released, ascending.
        values, stderrs: what was released; NaN says nothing.
        horizon: triggers of the whole window: the right edge.
    """
    points = np.flatnonzero(np.isfinite(values) & np.isfinite(stderrs))
    if len(points) > MOST_POINTS:
        steps = np.linspace(0, len(points) - 1, MOST_POINTS).round().astype(int)
        points = points[steps]
    across = (triggers[points] - 1) / max(1, horizon - 1)
    return way("trend", across, values[points], stderrs[points])[0]


def way(
    name: str, across: Float, values: Float, stderrs: Float, guesses: Float | None = None
) -> tuple[Drawing, tuple[float, float]]:
    """Return values in time with the band of their 95% error, and the ends of their scale, which has zero; no drawing where nothing is finite.

    Args:
        name: class of the SVG.
        across: when, as a share of the time that is shown.
        values, stderrs: what was released; a line ends where they are NaN.
        guesses: smoothed values.
    """
    low, high = _ends(values, stderrs)
    scale = _scale([low, high])
    is_known = np.isfinite(low)
    if not is_known.any():
        return NO_DRAWING, scale
    x = np.round(MARGIN + (WIDTH - 2 * MARGIN) * across)
    tops = _heights(high, scale)
    middles = _heights(values, scale)
    bottoms = _heights(low, scale)
    runs = _runs(is_known)
    bands = [
        _path(np.append(x[run], x[run][::-1]), np.append(tops[run], bottoms[run][::-1])) + "z"
        for run in runs
    ]
    lines = [_path(x[run], middles[run]) for run in runs]
    guess_lines = []
    if guesses is not None:
        guess_lines = [_path(x[is_known], _heights(guesses, scale)[is_known])]
    points = np.flatnonzero(is_known)
    if name == "trend" or len(points) > MOST_DOTS:
        points = points[-1:]
    dots = [_path(x[[point]], middles[[point]]) for point in points]
    paths = {"band": bands, "line": lines, "guess": guess_lines, "dots": dots}
    shapes = [f'<path class="{kind}" d="{"".join(path)}"/>' for kind, path in paths.items() if path]
    head = f'<svg class="{name}" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" aria-hidden="true">'
    return Drawing(f"{head}{''.join(shapes)}</svg>"), scale


def _runs(is_known: Bool) -> list[slice]:
    """Return the stretches between gaps."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_known, [False]])))
    return [slice(start, end) for start, end in edges.reshape(-1, 2)]


def _heights(numbers: Float, scale: tuple[float, float]) -> Float:
    """Return where numbers stand in a drawing, from its upper edge."""
    low, high = scale
    shares = (numbers.clip(low, high) - low) / max(high - low, 1e-300)
    return np.asarray(np.round(HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * shares))


def _path(x: Float, y: Float) -> str:
    """Return a line through points, each told by its way from the one before; through one point a dot."""
    steps = zip(np.diff(x).astype(int), np.diff(y).astype(int), strict=True)
    return f"M{int(x[0])} {int(y[0])}" + ("".join(f"l{dx} {dy}" for dx, dy in steps) or "h0")
