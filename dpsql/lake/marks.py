"""The names of the transaction marks: each is a run's, and is committed with the rows that it speaks of."""

from __future__ import annotations


def rows_mark(run_id: str, operator: str, generation: int) -> str:
    """Return the mark whose version is the newest micro-batch of an operator whose rows are in its table."""
    return f"{run_id}/{operator}/g{generation}/rows"


def tick_mark(run_id: str) -> str:
    """Return the mark whose version is the number of the newest catch-up that has ticked."""
    return f"{run_id}/tick"


def ticked_mark(run_id: str) -> str:
    """Return the mark whose version is one more than the newest micro-batch that a tick covers."""
    return f"{run_id}/ticked_batches"


def closed_mark(run_id: str) -> str:
    """Return the mark whose version is the time of the newest tick."""
    return f"{run_id}/closed_us"


def forgotten_mark(run_id: str) -> str:
    """Return the mark whose version is the newest era whose rows were deleted."""
    return f"{run_id}/forgotten"


def merged_mark(run_id: str) -> str:
    """Return the mark whose version is one of the table: ticks of earlier commits have been put into other files, and their own may be gone."""
    return f"{run_id}/merged"


def triggers_mark(run_id: str, generation: int) -> str:
    """Return the mark whose version counts the grid points of triggers, from 1970 to the newest tick whose rows are in the histogram."""
    return f"{run_id}/release/g{generation}/triggers"


def described_mark(run_id: str) -> str:
    """Return the mark whose version is 1: what a public table says of itself speaks of the run, too."""
    return f"{run_id}/described"
