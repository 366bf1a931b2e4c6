"""Which versions of its state a query goes on from, as the driver has listed them: a task refuses whatever else lies in their place.

A file that is whole may be another one than was listed: put back from a backup, or written late by a task whose driver is long gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from dpsql.lake.manifest import Manifest
from dpsql.udfs.bucket_state import fingerprint
from dpsql.udfs.stage import StateFile


class ListedVersions:
    """The listed versions of one operator's state, in one start.

    Args:
        manifest: its listed state files.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._known: dict[int, tuple[int, str]] | None = None

    def versions_before(self, batch: int) -> str:
        """Return what the tasks of a micro-batch are told: bucket -> (version, fingerprint) after the one before it."""
        if (
            self._known is None
        ):  # the first of a start may be listed already, and is done again from what was there before it
            versions = self._manifest.pointers(batch - 1)
            digests = self._manifest.digests(versions)
            self._known = {
                bucket: (versions[bucket], fingerprint(of)) for bucket, of in digests.items()
            }
        return json.dumps(self._known, separators=(",", ":"))

    def add(self, files: Iterable[StateFile]) -> None:
        """Add the versions of a micro-batch that is listed."""
        assert self._known is not None
        self._known |= {
            file.bucket: (file.sequence, fingerprint(file.counted["sha256"]))
            for file in files
            if file.bytes
        }
