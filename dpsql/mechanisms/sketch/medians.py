"""How noisy an estimate is: standard deviation of the median, and of the smallest, of d independent standard normals, rounded up.

A table, because these numbers are published: another machine's last bit would be another table. A test integrates them anew.
"""

from __future__ import annotations

from dpsql.mechanisms.sketch.asked import SketchKind

MEDIAN = {
    3: 0.66983,
    5: 0.53557,
    7: 0.45875,
    9: 0.40756,
    11: 0.37036,
    13: 0.34176,
    15: 0.31890,
    17: 0.30008,
    19: 0.28424,
    21: 0.27067,
    23: 0.25887,
    25: 0.24849,
    27: 0.23927,
    29: 0.23100,
    31: 0.22353,
}
SMALLEST = {
    3: 0.74798,
    5: 0.66898,
    7: 0.62604,
    9: 0.59780,
    11: 0.57728,
    13: 0.56144,
    15: 0.54868,
    17: 0.53809,
    19: 0.52909,
    21: 0.52132,
    23: 0.51450,
    25: 0.50844,
    27: 0.50302,
    29: 0.49811,
    31: 0.49364,
}


def stderr(kind: SketchKind, depth: int) -> float:
    """Of an estimate from so many rows, per standard deviation of a cell's noise."""
    return (MEDIAN if kind is SketchKind.COUNT_SKETCH else SMALLEST)[depth]
