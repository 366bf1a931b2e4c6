"""Which columns of a sketch are published when: round robin over p blocks of columns, by the public number of the trigger alone.

Trigger i refreshes block b = {columns j: j = b mod p} iff i = b mod p, or i = T. A record with trigger i enters its cell at the first refresh of its
block at or after i: at most p - 1 triggers later, and none is left out, because all blocks are refreshed at T.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """T triggers, cycle p."""

    triggers: int
    cycle: int

    @property
    def horizon(self) -> int:
        """Refreshes of a column, at most: 1 + ceil((T - 1) / p), and some block has so many. At p = 1 that is T."""
        return 1 + -(-(self.triggers - 1) // self.cycle)

    def due(self, trigger: int) -> Iterator[tuple[int, int, int]]:
        """What a trigger refreshes: (first column, stride, which refresh of these columns it is, from 1)."""
        if self.cycle == 1:
            yield 0, 1, trigger
        elif trigger < self.triggers:
            block = trigger % self.cycle
            yield block, self.cycle, self.count(block, trigger)
        else:
            for block in range(self.cycle):
                yield block, self.cycle, self.count(block, trigger)

    def count(self, block: int, trigger: int) -> int:
        """Refreshes of a block at triggers 1 up to this one."""
        regular = (trigger - block) // self.cycle + (block > 0)
        return regular + (trigger == self.triggers and trigger % self.cycle != block)
