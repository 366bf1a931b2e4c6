"""The public groups of a run: computed at its first start, kept with it, and never computed anew."""

from __future__ import annotations

from pyspark.sql import SparkSession

from dpsql.compiled import Query
from dpsql.errors import LakeError
from dpsql.lake import remedies
from dpsql.lake.engine_file import Engine
from dpsql.mechanisms import public_groups
from dpsql.streaming.rows import listed_keys
from dpsql.udfs.bucket_state import DamagedFile, UnknownVersion
from dpsql.udfs.keys import PublicGroups


def groups_of(
    session: SparkSession, query: Query, engine: Engine, first_window_us: int | None, salt: bytes
) -> PublicGroups | None:
    """The public groups of a run; None of a query that selects its keys.

    Args:
        session: has the public table.
        query: of the run.
        engine: of the run.
        first_window_us: no window that starts earlier belongs to the run.
        salt: of the run.

    Raises:
        LakeError: they are lost or damaged. Today's list may be another than that with which rows were published.
    """
    if not query.shape.listed:
        return None
    try:
        kept = public_groups.load(engine.folder)
    except (DamagedFile, UnknownVersion) as problem:
        raise LakeError(f"{problem}; {remedies.unrepairable(engine.folder)}") from None
    if kept is None:
        if engine.has_begun:
            raise LakeError(
                f"{engine.folder / public_groups.FILE} is lost, but the run has been started before; {remedies.unrepairable(engine.folder)}"
            )
        listed = listed_keys(session, query.plan)
        kept = public_groups.public_groups(query.plan, query.source, salt, listed, first_window_us)
        public_groups.save(kept, engine.folder)
    return kept
