"""Line charts as SVG text: panels, two beside each other, one legend. Nothing but the standard library, so the figures are made by any checkout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

COLOURS = ("#0b5fa5", "#c8501e", "#2e8540", "#7b4ea3", "#8a6d00", "#00838f", "#a3195b", "#555555")
WIDTH = 330
HEIGHT = 220
LEFT = 82
TOP = 34
BOTTOM = 50
GAP = 26
ACROSS = 2


@dataclass(frozen=True)
class Line:
    """One line of a panel."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Panel:
    """One chart: its title, the names of its axes, its lines; `log`, `log_x`: equal steps of an axis are equal factors."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    log: bool = False
    log_x: bool = False


def draw(path: Path, panels: Sequence[Panel]) -> None:
    """Write the panels in rows; a label has one colour in all of them."""
    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
    colour = {label: COLOURS[i % len(COLOURS)] for i, label in enumerate(labels)}
    rows = math.ceil(len(panels) / ACROSS)
    below = rows * (TOP + HEIGHT + BOTTOM)
    width = min(len(panels), ACROSS) * (LEFT + WIDTH + GAP)
    height = below + 18 * len(labels) + 8
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12" fill="#222">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, panel in enumerate(panels):
        row, column = divmod(number, ACROSS)
        out += _panel(
            panel, column * (LEFT + WIDTH + GAP) + LEFT, row * (TOP + HEIGHT + BOTTOM) + TOP, colour
        )
    for i, label in enumerate(labels):
        y = below + 18 * i + 4
        out.append(
            f'<line x1="{LEFT}" y1="{y}" x2="{LEFT + 26}" y2="{y}" stroke="{colour[label]}" stroke-width="3"/>'
        )
        out.append(f'<text x="{LEFT + 34}" y="{y + 4}">{escape(label)}</text>')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*out, "</svg>", ""]), encoding="utf-8")


def _panel(panel: Panel, left: float, top: float, colour: dict[str, str]) -> list[str]:
    xs = [x for line in panel.lines for x in line.x]
    ys = [y for line in panel.lines for y in line.y if y > 0 or not panel.log]
    low_x, high_x = (_scaled(x, panel.log_x) for x in (min(xs, default=0.0), max(xs, default=1.0)))
    ticks = _powers(ys) if panel.log else _steps(max(ys, default=1.0))
    low_y = _scaled(ticks[0], panel.log)
    high_y = _scaled(ticks[-1], panel.log)

    def across(x: float) -> float:
        return left + (_scaled(x, panel.log_x) - low_x) / ((high_x - low_x) or 1) * WIDTH

    def up(y: float) -> float:
        return top + HEIGHT * (
            1 - (_scaled(max(y, ticks[0]), panel.log) - low_y) / (high_y - low_y)
        )

    out = [
        f'<text x="{left}" y="{top - 14}" font-size="14" font-weight="bold">{escape(panel.title)}</text>'
    ]
    middle = top + HEIGHT / 2
    out.append(
        f'<text transform="translate({left - 58},{middle}) rotate(-90)" text-anchor="middle">{escape(panel.y_label)}</text>'
    )
    for tick in ticks:
        y = up(tick)
        out.append(
            f'<line x1="{left}" y1="{y:.1f}" x2="{left + WIDTH}" y2="{y:.1f}" stroke="#dddddd"/>'
        )
        out.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{_short(tick)}</text>')
    for x in (
        sorted(set(xs))
        if panel.log_x
        else [
            tick for tick in _steps(max(xs, default=1.0)) if min(xs, default=0.0) <= tick <= max(xs)
        ]
    ):
        out.append(
            f'<text x="{across(x):.1f}" y="{top + HEIGHT + 16}" text-anchor="middle">{_short(x)}</text>'
        )
    out.append(
        f'<text x="{left + WIDTH / 2}" y="{top + HEIGHT + 34}" text-anchor="middle">{escape(panel.x_label)}</text>'
    )
    for line in panel.lines:
        points = " ".join(
            f"{across(x):.1f},{up(y):.1f}" for x, y in zip(line.x, line.y, strict=True)
        )
        out.append(
            f'<polyline points="{points}" fill="none" stroke="{colour[line.label]}" stroke-width="1.8"/>'
        )
    return out


def _scaled(value: float, log: bool) -> float:
    return math.log10(value) if log else value


def _powers(ys: Sequence[float]) -> list[float]:
    low = math.floor(math.log10(min(ys, default=1.0)))
    high = math.ceil(math.log10(max(ys, default=10.0)))
    return [10.0**k for k in range(low, max(high, low + 1) + 1)]


def _steps(top: float) -> list[float]:
    """0 and round numbers up to beyond the top."""
    raw = max(top, 1e-9) / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(m * unit for m in (1, 2, 2.5, 5, 10) if m * unit >= raw * (1 - 1e-9))
    return [step * i for i in range(math.ceil(top / step - 1e-9) + 1)]


def _short(value: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
