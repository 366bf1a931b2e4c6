"""Drawings of a few pixels: a value with its 95% error, and a key's way through its window."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dpsql.text import Z95

# A drawing of a few pixels as text, for readers that have no template engine.


class Drawing(str):
    """An SVG made of numbers alone, which a template does not escape."""

    __slots__ = ()

    def __html__(self) -> str:
        """Return the SVG as it is: what template engines ask a value that is safe."""
        return str(self)


# A value with its 95% error as a drawing of a few pixels, on a scale that all rows of a column
# share.

if TYPE_CHECKING:
    from numpy.typing import NDArray

WIDTH = 120
HEIGHT = 18
MARGIN = 4


def intervals(
    values: NDArray[np.float64],
    stderrs: NDArray[np.float64],
    within: tuple[float, float] | None = None,
) -> list[Drawing]:
    """Return one SVG, made of numbers alone, per value; empty where it is not finite.

    Args:
        values, stderrs: of one column.
        within: the bounds of an average, which is drawn as a dot; else a bar from zero.
    """
    low = values - Z95 * stderrs
    high = values + Z95 * stderrs
    is_finite = np.isfinite(low) & np.isfinite(high)
    if not is_finite.any():
        return [Drawing()] * len(values)
    floor, ceiling = within or (0.0, 0.0)
    scale_low = min(floor, float(low[is_finite].min()))
    scale_high = max(ceiling, float(high[is_finite].max()))
    scale = (WIDTH - 2 * MARGIN) / max(scale_high - scale_low, 1e-300)

    def across(value: float) -> float:
        return MARGIN + (min(max(value, scale_low), scale_high) - scale_low) * scale

    drawings = []
    for value, whisker_low, whisker_high, has_interval in zip(
        values, low, high, is_finite, strict=True
    ):
        if not has_interval:
            drawings.append(Drawing())
            continue
        middle = across(value)
        y = HEIGHT / 2
        zero = across(0.0)
        start = min(zero, middle)
        length = abs(middle - zero)
        shape = f'<rect class="value" x="{start:.1f}" y="4" width="{length:.1f}" height="{HEIGHT - 8}"/>'
        if within:
            shape = f'<circle cx="{middle:.1f}" cy="{y:.1f}" r="3"/>'
        whisker = f'<path class="whisker" d="M{across(whisker_low):.1f} {y:.1f}H{across(whisker_high):.1f}"/>'
        drawings.append(
            Drawing(
                f'<svg class="interval" viewBox="0 0 {WIDTH} {HEIGHT}" aria-hidden="true">{shape}{whisker}</svg>'
            )
        )
    return drawings


# A key's way through the window as a line of a few pixels, with the band of its error.


TREND_WIDTH = 132
TREND_HEIGHT = 28
TREND_MARGIN = 3
MOST_POINTS = 60


def trend(
    triggers: NDArray[np.int64],
    values: NDArray[np.float64],
    stderrs: NDArray[np.float64],
    horizon: int,
    within: tuple[float, float] | None = None,
) -> Drawing:
    """Return an SVG made of numbers alone.

    Args:
        triggers: numbers of the triggers at which the key was released, ascending.
        values, stderrs: what was released; NaN is left out.
        horizon: triggers of the whole window: the right edge.
        within: the bounds of an average, which are on the drawing; else zero is.

    Returns:
        `<svg>`: the band of 95% and the line; a single release is a dot. Empty where nothing is finite.
    """
    points = np.flatnonzero(np.isfinite(values) & np.isfinite(stderrs))
    if not len(points):
        return Drawing()
    if len(points) > MOST_POINTS:
        steps = np.linspace(0, len(points) - 1, MOST_POINTS).round().astype(int)
        points = points[np.unique(steps)]
    triggers = triggers[points]
    values = values[points]
    errors = Z95 * stderrs[points]
    band_low = values - errors
    band_high = values + errors
    floor, ceiling = within or (0.0, 0.0)
    low = min(floor, float(band_low.min()))
    high = max(ceiling, float(band_high.max()))
    across = TREND_MARGIN + (TREND_WIDTH - 2 * TREND_MARGIN) * (triggers - 1) / max(1, horizon - 1)

    band = [
        *zip(across, _heights(band_high, low, high), strict=True),
        *zip(across[::-1], _heights(band_low, low, high)[::-1], strict=True),
    ]
    heights = _heights(values, low, high)
    line = _points(zip(across, heights, strict=True))
    dot = f'<circle cx="{across[-1]:.1f}" cy="{heights[-1]:.1f}" r="2"/>'
    shape = (
        f'<polygon class="band" points="{_points(band)}"/><polyline class="line" points="{line}"/>'
        if len(values) > 1
        else ""
    )
    return Drawing(
        f'<svg class="trend" viewBox="0 0 {TREND_WIDTH} {TREND_HEIGHT}" aria-hidden="true">{shape}{dot}</svg>'
    )


def _heights(values: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    """Return where some values stand in a drawing, from its upper edge."""
    values = values.clip(low, high)
    return (
        TREND_HEIGHT
        - TREND_MARGIN
        - (TREND_HEIGHT - 2 * TREND_MARGIN) * (values - low) / max(high - low, 1e-300)
    )


def _points(pairs: object) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in pairs)  # type: ignore[attr-defined]
