"""The identity of a plan: what a run, its noise and its ledger line are bound to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def identity_of(version: int, document: Mapping[str, Any]) -> str:
    """SHA-256 over a whole plan, every default filled in; hexadecimal.

    Args:
        version: of the mechanism's plans.
        document: the plan as JSON values, with no identity.
    """
    digested = {"version": version, "plan": document}
    return hashlib.sha256(
        json.dumps(digested, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()
