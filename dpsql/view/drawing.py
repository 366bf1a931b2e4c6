"""A drawing of a few pixels as text, for readers that have no template engine."""

from __future__ import annotations


class Drawing(str):
    """An SVG made of numbers alone, which a template does not escape."""

    __slots__ = ()

    def __html__(self) -> str:
        """Return the SVG as it is: what template engines ask a value that is safe."""
        return str(self)
