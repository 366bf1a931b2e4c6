"""What readers of the public table of cells must know of a plan."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SketchShape:
    """One or several sketches that count the same; `dpsql.udfs.sketch.publishing` says how their cells are released.

    Args:
        depth, width, signed: of every sketch.
        hash_scheme: `dpsql.udfs.sketch.hashing.SCHEME`.
        aliases: of the sketches, in order of their rows.
        counts: of each, whether it counts records; else it adds up a weight.
        grids: value of one step of their cells.
        sd: of their cells' noise by trigger, in value units.
        stderr: of an estimate's noise, per standard deviation of a cell's.
        by_window: every window has a hash key of its own, published with its last cells.
        missed: the largest share of a value's records that a row leaves out.
    """

    depth: int
    width: int
    signed: bool
    hash_scheme: str
    aliases: tuple[str, ...]
    counts: tuple[bool, ...]
    grids: tuple[float, ...]
    sd: tuple[tuple[float, ...], ...]
    stderr: float
    by_window: bool
    missed: float
