"""The live view: a histogram as one HTML page that needs nothing else. Everything on it is public."""

from dpsql.page.page import page
from dpsql.page.standing import Standing, standing

__all__ = ["Standing", "page", "standing"]
