"""A value with its 95% error as a drawing of a few pixels, on a scale that all rows of a column share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dpsql.text import Z95
from dpsql.view.drawing import Drawing

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
    """One SVG, made of numbers alone, per value; empty where it is not finite.

    Args:
        values, stderrs: of one column.
        within: the bounds of an average, which is drawn as a dot between them, its whisker cut to them; else a bar from zero.
    """
    low = values - Z95 * stderrs
    high = values + Z95 * stderrs
    known = np.isfinite(low) & np.isfinite(high)
    if not known.any():
        return [Drawing()] * len(values)
    if within:
        low = np.clip(low, *within)
        high = np.clip(high, *within)
        left, right = within
    else:
        left = min(0.0, float(low[known].min()))
        right = max(0.0, float(high[known].max()))
    scale = (WIDTH - 2 * MARGIN) / max(right - left, 1e-300)

    def across(value: float) -> float:
        return MARGIN + (min(max(value, left), right) - left) * scale

    drawn = []
    for value, down, up, finite in zip(values, low, high, known, strict=True):
        if not finite:
            drawn.append(Drawing())
            continue
        middle = across(value)
        y = HEIGHT / 2
        zero = across(0.0)
        start = min(zero, middle)
        length = abs(middle - zero)
        shape = f'<rect class="value" x="{start:.1f}" y="4" width="{length:.1f}" height="{HEIGHT - 8}"/>'
        if within:
            shape = f'<circle cx="{middle:.1f}" cy="{y:.1f}" r="3"/>'
        whisker = f'<path class="whisker" d="M{across(down):.1f} {y:.1f}H{across(up):.1f}"/>'
        drawn.append(
            Drawing(
                f'<svg class="interval" viewBox="0 0 {WIDTH} {HEIGHT}" aria-hidden="true">{shape}{whisker}</svg>'
            )
        )
    return drawn
