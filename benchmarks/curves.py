"""Curves for the notebooks, in the look of the charts of histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dpsql.view.charts import COLOURS, NUMBERS, WIDTH, Chart, plain_axes

MARKS = ("o", "s", "^", "D", "v", "P", "X")


def curves(
    points: Mapping[str, Sequence[tuple[float, float]]],
    x: str,
    y: str,
    caption: str,
    title: str | None = None,
    log_x: bool = True,
) -> Chart:
    """One line per name through (x, y) points, like error against epsilon.

    Args:
        points: per line, its points in order of x.
        x, y: names of the axes, with units.
        caption: below the chart.
        title: above it.
        log_x: steps of x are factors; its ticks are the points themselves.
    """
    figure = Chart(WIDTH, 3.6)
    axes = figure.add_subplot()
    axes.set_title(title or f"{y} against {x}", loc="left", fontsize=11)
    plain_axes(axes)
    for i, (name, line) in enumerate(points.items()):
        across = [point[0] for point in line]
        up = [point[1] for point in line]
        axes.plot(
            across,
            up,
            color=COLOURS[i % len(COLOURS)],
            marker=MARKS[i % len(MARKS)],
            markersize=5,
            label=name,
        )
    if log_x:
        axes.set_xscale("log")
        ticks = sorted({point[0] for line in points.values() for point in line})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.yaxis.set_major_formatter(NUMBERS)
    axes.set_ylim(bottom=0)
    if len(points) > 1:
        axes.legend(framealpha=0.85, edgecolor="none")
    return figure.captioned(caption)
