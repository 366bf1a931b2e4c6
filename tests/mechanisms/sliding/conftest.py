"""The hypothesis profiles of the property tests hold here too."""

import tests.property.conftest  # noqa: F401
