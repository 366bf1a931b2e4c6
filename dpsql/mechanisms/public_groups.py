"""Public groups: keys that need no selection, because a public table lists them, or because the query has no key at all.

They are computed once, when a run first starts, and kept with it: a list that changed later would change what is released.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import pyarrow as pa

from dpsql.errors import ConfigError
from dpsql.files import Place
from dpsql.mechanisms import registry
from dpsql.mechanisms.protocol import Plan
from dpsql.sources.config import Source
from dpsql.udfs.bucket_state import read_table, write_table
from dpsql.udfs.keys import PublicGroups

FILE = "public_groups.parquet"


def first_window_us(plan: Plan, source: Source) -> int:
    """Return the start of the window that holds the declared start of the stream; public groups are
    released from it on. In a one-time release there is one window.

    Raises:
        ConfigError: the source declares no start. The first record's time cannot stand in: it belongs to one user.
    """
    schedule = registry.shape(plan).schedule
    if plan.query.once:
        return schedule.offset_us
    if source.start_us is None:
        subject = "public groups are" if plan.query.keys else "a query without a key is"
        raise ConfigError(
            f"{subject} released in every window from the stream's declared start: {source.declared('start', '2026-01-01')}"
        )
    return schedule.window_of(source.start_us)


def public_groups(
    plan: Plan,
    source: Source,
    salt: bytes,
    encoded: Iterable[bytes],
    first_window: int | None = None,
) -> PublicGroups:
    """Return the groups of encoded keys (see `dpsql.udfs.keys`); without keys the one group of the empty encoding.

    Args:
        plan: a plan without key selection.
        source: the stream's declaration.
        salt: of the run; makes the ids as for records.
        encoded: the listed keys, in any order, repeated or not.
        first_window: no window that starts earlier belongs to this run.
    """
    names = sorted(set(encoded)) if plan.query.keys else [b""]
    ids = tuple(
        int.from_bytes(hashlib.sha256(salt + b"k" + name).digest()[:8], "big", signed=True)
        for name in names
    )
    first = first_window_us(plan, source)
    return PublicGroups(
        ids, tuple(names), first if first_window is None else max(first, first_window)
    )


def save(groups: PublicGroups, folder: Place) -> None:
    """Keep the groups with their run."""
    table = pa.table(
        {
            "key": pa.array(groups.keys, pa.int64()),
            "key_bytes": pa.array(groups.key_bytes, pa.binary()),
        }
    )
    write_table(
        str(folder / FILE),
        table.replace_schema_metadata({"first_window_us": str(groups.first_window_us)}),
    )


def load(folder: Place) -> PublicGroups | None:
    """Return the groups of a run, or None before its first start.

    Raises:
        DamagedState, UnknownStateVersion: the file is not what `save` wrote.
    """
    try:
        table = read_table(str(folder / FILE))
    except FileNotFoundError:
        return None
    first = int((table.schema.metadata or {})[b"first_window_us"])
    return PublicGroups(
        tuple(table["key"].to_pylist()), tuple(table["key_bytes"].to_pylist()), first
    )
