"""What follows a run: it is shown anew after every commit to its public table."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import monotonic, sleep
from typing import TYPE_CHECKING

from dpsql.errors import NothingPublished
from dpsql.jobs.terminal import note

if TYPE_CHECKING:
    from dpsql.lake.runs import Lake

POLL_SECONDS = 1.0


def follow(
    lake: Lake, name: str, show: Callable[[], None], again_seconds: float = math.inf
) -> None:
    """Show what there is, after every commit and at least so often, until it is interrupted.

    Args:
        lake, name: the query.
        show: what there is.
        again_seconds: what is shown grows old while nothing is published.

    Raises:
        LakeError: no such query, or its tables cannot be read.
    """
    from dpsql.published.public_rows import histogram_version

    last_version = -1
    shown_at = 0.0
    while True:
        version = histogram_version(lake, name)
        if version and (version != last_version or monotonic() - shown_at > again_seconds):
            try:
                show()
            except NothingPublished as nothing:
                if version != last_version:
                    note(str(nothing))
            shown_at = monotonic()
        elif version != last_version:
            note(f"{name} has published nothing yet; waiting for its first trigger")
        last_version = version
        sleep(POLL_SECONDS)
