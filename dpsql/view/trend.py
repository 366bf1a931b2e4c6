"""A key's way through the window as a line of a few pixels, with the band of its error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dpsql.text import Z95
from dpsql.view.drawing import Drawing

if TYPE_CHECKING:
    from numpy.typing import NDArray

WIDTH = 132
HEIGHT = 28
MARGIN = 3
MOST_POINTS = 60


def trend(
    triggers: NDArray[np.int64],
    values: NDArray[np.float64],
    stderrs: NDArray[np.float64],
    horizon: int,
    within: tuple[float, float] | None = None,
) -> Drawing:
    """An SVG made of numbers alone.

    Args:
        triggers: numbers of the triggers at which the key was released, ascending.
        values, stderrs: what was released; NaN is left out.
        horizon: triggers of the whole window: the right edge.
        within: the bounds of an average, which are the lower and the upper edge; else zero is on the drawing.

    Returns:
        `<svg>`: the band of 95% and the line; a single release is a dot. Empty where nothing is finite.
    """
    known = np.isfinite(values) & np.isfinite(stderrs)
    triggers = triggers[known]
    values = values[known]
    errors = Z95 * stderrs[known]
    if not len(values):
        return Drawing()
    if len(values) > MOST_POINTS:
        kept = np.unique(np.linspace(0, len(values) - 1, MOST_POINTS).round().astype(int))
        triggers = triggers[kept]
        values = values[kept]
        errors = errors[kept]
    below = values - errors
    above = values + errors
    low, high = within or (min(0.0, float(below.min())), max(0.0, float(above.max())))
    across = MARGIN + (WIDTH - 2 * MARGIN) * (triggers - 1) / max(1, horizon - 1)

    def up(level: NDArray[np.float64]) -> NDArray[np.float64]:
        level = level.clip(low, high)
        return HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (level - low) / max(high - low, 1e-300)

    band = [*zip(across, up(above), strict=True), *zip(across[::-1], up(below)[::-1], strict=True)]
    line = _points(zip(across, up(values), strict=True))
    dot = f'<circle cx="{across[-1]:.1f}" cy="{up(values)[-1]:.1f}" r="2"/>'
    shape = (
        f'<polygon class="band" points="{_points(band)}"/><polyline class="line" points="{line}"/>'
        if len(values) > 1
        else ""
    )
    return Drawing(
        f'<svg class="trend" viewBox="0 0 {WIDTH} {HEIGHT}" aria-hidden="true">{shape}{dot}</svg>'
    )


def _points(pairs: object) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in pairs)  # type: ignore[attr-defined]
