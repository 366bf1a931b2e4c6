"""`dpsql show --watch`: the same print-out again, whenever something was published."""

from __future__ import annotations

import time
from collections.abc import Callable

import click

from jobs.terminal import note

POLL_SECONDS = 1.0


def watched(lake_folder: str, name: str, show: Callable[[], None]) -> None:
    """Show now, and after every commit to the histogram; Ctrl-C ends it, and that is a success.

    Args:
        lake_folder, name: the query.
        show: prints what there is.

    Raises:
        LakeError: no such query, or its tables cannot be read.
    """
    from dpsql.lake import Lake, histogram_version

    lake, shown = Lake(lake_folder), None
    try:
        while True:
            version = histogram_version(lake, name)
            if version != shown:
                if version:
                    click.clear()
                    show()
                elif shown is None:
                    note(f"{name} has published nothing yet; waiting for its first trigger")
                shown = version
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        return
