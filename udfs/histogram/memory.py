"""What a key bucket remembers of its keys beyond their windows: which are known, and what closed windows have shown of each.

A key is silent or known. Evidence is the selection sum of a (window, key) after the window's last trigger; it exists for every key and window,
with a record or not, so a window without a row stands for a weight of 0 and one word of noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import Bool, Float, Int, find, insert, match, places, run_starts, sort_order
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.state_table import Table

TABLES = {"memory": Table(("key",), "key"), "evidence": Table(("key", "window"), "key")}

SILENT = NO_CLOCK
"""In the place of the time at which a key became known."""


@dataclass(frozen=True)
class Memory:
    """Keys that are known, that have evidence, or whose epoch must not be forgotten; sorted by key.

    known_us: the trigger's time at which the key became known; SILENT. epoch: no test reads a window that starts earlier.
    """

    key: Int
    names: pa.Array
    known_us: Int
    epoch: Int

    @classmethod
    def of(cls, table: pa.Table) -> Memory:
        """From the state."""
        key, known_us, epoch = (
            table.column(name).to_numpy() for name in ("key", "known_us", "epoch")
        )
        return cls(key, table.column("key_bytes").combine_chunks(), known_us, epoch)

    def table(self) -> pa.Table:
        """For the state."""
        return pa.table(
            {
                "key": self.key,
                "key_bytes": self.names,
                "known_us": self.known_us,
                "epoch": self.epoch,
            }
        )

    @property
    def known(self) -> Bool:
        """Which keys are."""
        return self.known_us != SILENT

    def known_since(self, key: Int) -> Int:
        """When each key became known; SILENT."""
        return self._look_up(key, self.known_us, SILENT)

    def epoch_of(self, key: Int, first: int) -> Int:
        """The epoch of each key; of a key that is not here, `first`."""
        return self._look_up(key, self.epoch, first)

    def with_keys(self, key: Int, names: pa.Array, first: int) -> Memory:
        """With these keys, silent and of epoch `first` where they are new; any order, no key twice."""
        order = np.argsort(key)
        order = order[match([key[order]], [self.key]) < 0]
        where = places(find([key[order]], [self.key])[0])
        taken = insert(np.arange(len(self.key)), len(self.key) + order, where)
        return Memory(
            insert(self.key, key[order], where),
            pa.concat_arrays([self.names, names.cast(self.names.type)]).take(pa.array(taken)),
            insert(self.known_us, np.full(len(order), SILENT), where),
            insert(self.epoch, np.full(len(order), first), where),
        )

    def learnt(self, key: Int, known_us: Int) -> Memory:
        """With these keys, all here, known since then."""
        times = self.known_us.copy()
        times[match([key], [self.key])] = known_us
        return replace(self, known_us=times)

    def dropped(self, which: Bool, epoch: int) -> Memory:
        """With these keys silent, and a new epoch."""
        return replace(
            self,
            known_us=np.where(which, SILENT, self.known_us),
            epoch=np.where(which, epoch, self.epoch),
        )

    def kept(self, which: Bool) -> Memory:
        """These keys only."""
        if which.all():
            return self
        return Memory(
            self.key[which],
            self.names.filter(pa.array(which)),
            self.known_us[which],
            self.epoch[which],
        )

    def _look_up(self, key: Int, values: Int, otherwise: int) -> Int:
        at = match([key], [self.key])
        return np.where(at >= 0, values[at] if len(values) else otherwise, otherwise)


@dataclass(frozen=True)
class Evidence:
    """Sums of closed windows with an admitted record, sorted by (key, window).

    weight: in units of 2^-20. users: that counted. noise: of unit sigma, the end of the group's path, or one word; NaN where float64 cannot be trusted.
    """

    key: Int
    window: Int
    weight: Int
    users: Int
    noise: Float

    @classmethod
    def of(cls, table: pa.Table) -> Evidence:
        """From the state."""
        return cls(
            *(
                table.column(name).to_numpy()
                for name in ("key", "window", "weight", "users", "noise")
            )
        )

    def table(self) -> pa.Table:
        """For the state."""
        return pa.table(
            {name: getattr(self, name) for name in ("key", "window", "weight", "users", "noise")}
        )

    def plus(self, other: Evidence) -> Evidence:
        """Both."""
        columns = [
            np.concatenate([getattr(self, name), getattr(other, name)])
            for name in self.__dataclass_fields__
        ]
        order = sort_order(columns[0], columns[1])
        return Evidence(*(column[order] for column in columns))

    def kept(self, which: Bool) -> Evidence:
        """These rows only."""
        return (
            self
            if which.all()
            else Evidence(*(getattr(self, name)[which] for name in self.__dataclass_fields__))
        )

    @property
    def keys(self) -> Int:
        """Each key once."""
        return self.key[run_starts(self.key)]


def empty_memory() -> dict[str, pa.Table]:
    """Nothing is known, and nothing was seen."""
    none = np.zeros(0, np.int64)
    memory = Memory(none, pa.array([], pa.binary()), none, none)
    return {
        "memory": memory.table(),
        "evidence": Evidence(none, none, none, none, np.zeros(0)).table(),
    }
