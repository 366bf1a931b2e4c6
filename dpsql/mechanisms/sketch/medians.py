"""How noisy an estimate is: standard deviation of the median, and of the smallest, of d independent standard normals, rounded up.

A table, because these numbers are published: another machine's last bit would be another table. A test integrates them anew.
"""

from __future__ import annotations

from dpsql.mechanisms.sketch.asked import SketchKind

MEDIAN = {3: 0.66983, 5: 0.53557, 9: 0.40756, 17: 0.30008, 31: 0.22353}
SMALLEST = {3: 0.74798, 5: 0.66898, 9: 0.59780, 17: 0.53809, 31: 0.49364}
"""A query has 9 rows (`asked.DEPTH`); plans with others are for comparison."""


def stderr(kind: SketchKind, depth: int) -> float:
    """Of an estimate from so many rows, per standard deviation of a cell's noise."""
    return (MEDIAN if kind is SketchKind.COUNT_SKETCH else SMALLEST)[depth]
