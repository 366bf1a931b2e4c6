"""Line charts as SVG text: panels side by side, one legend. Nothing but the standard library, so the figures are made by any checkout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

COLOURS = ("#0b5fa5", "#c8501e", "#2e8540", "#7b4ea3", "#8a6d00", "#00838f", "#a3195b", "#555555")
WIDTH, HEIGHT, LEFT, TOP, BOTTOM, GAP = 330, 220, 62, 34, 42, 26


@dataclass(frozen=True)
class Line:
    """One line of a panel."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Panel:
    """One chart: its title, the name of its x axis, its lines; `log`: powers of ten on the y axis."""

    title: str
    x_label: str
    lines: Sequence[Line]
    log: bool = False


def draw(path: Path, panels: Sequence[Panel]) -> None:
    """Write the panels beside each other; a label has one colour in all of them."""
    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
    colour = {label: COLOURS[i % len(COLOURS)] for i, label in enumerate(labels)}
    height = TOP + HEIGHT + BOTTOM + 18 * len(labels) + 8
    width = len(panels) * (LEFT + WIDTH + GAP)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12" fill="#222">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, panel in enumerate(panels):
        out += _panel(panel, number * (LEFT + WIDTH + GAP) + LEFT, colour)
    for i, label in enumerate(labels):
        y = TOP + HEIGHT + BOTTOM + 18 * i + 8
        out.append(f'<line x1="{LEFT}" y1="{y}" x2="{LEFT + 26}" y2="{y}" stroke="{colour[label]}" stroke-width="3"/>')
        out.append(f'<text x="{LEFT + 34}" y="{y + 4}">{escape(label)}</text>')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*out, "</svg>", ""]), encoding="utf-8")


def _panel(panel: Panel, left: float, colour: dict[str, str]) -> list[str]:
    xs = [x for line in panel.lines for x in line.x]
    ys = [y for line in panel.lines for y in line.y if y > 0 or not panel.log]
    low_x, high_x = min(xs, default=0.0), max(xs, default=1.0)
    ticks = _powers(ys) if panel.log else _steps(max(ys, default=1.0))
    low_y, high_y = _scaled(ticks[0], panel.log), _scaled(ticks[-1], panel.log)

    def at(x: float, y: float) -> tuple[float, float]:
        share = (_scaled(max(y, ticks[0]), panel.log) - low_y) / (high_y - low_y)
        return left + (x - low_x) / ((high_x - low_x) or 1) * WIDTH, TOP + HEIGHT * (1 - share)

    out = [f'<text x="{left}" y="{TOP - 14}" font-size="14" font-weight="bold">{escape(panel.title)}</text>']
    for tick in ticks:
        _, y = at(low_x, tick)
        out.append(f'<line x1="{left}" y1="{y:.1f}" x2="{left + WIDTH}" y2="{y:.1f}" stroke="#dddddd"/>')
        out.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{_short(tick)}</text>')
    for i in range(5):
        x = low_x + (high_x - low_x) * i / 4
        out.append(f'<text x="{at(x, ticks[0])[0]:.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{x:.3g}</text>')
    out.append(f'<text x="{left + WIDTH / 2}" y="{TOP + HEIGHT + 34}" text-anchor="middle">{escape(panel.x_label)}</text>')
    for line in panel.lines:
        points = " ".join("{:.1f},{:.1f}".format(*at(x, y)) for x, y in zip(line.x, line.y, strict=True))
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour[line.label]}" stroke-width="1.8"/>')
    return out


def _scaled(y: float, log: bool) -> float:
    return math.log10(y) if log else y


def _powers(ys: Sequence[float]) -> list[float]:
    low, high = math.floor(math.log10(min(ys, default=1.0))), math.ceil(math.log10(max(ys, default=10.0)))
    return [10.0**k for k in range(low, max(high, low + 1) + 1)]


def _steps(top: float) -> list[float]:
    """0 and round numbers up to beyond the top."""
    raw = max(top, 1e-9) / 4
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(m * unit for m in (1, 2, 2.5, 5, 10) if m * unit >= raw * (1 - 1e-9))
    return [step * i for i in range(math.ceil(top / step - 1e-9) + 1)]


def _short(value: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
