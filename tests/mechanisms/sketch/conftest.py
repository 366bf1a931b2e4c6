"""The hypothesis profiles of the property tests hold here too."""

from __future__ import annotations

import tests.property.conftest  # noqa: F401
