"""The commands that messages about a damaged run end with."""

from __future__ import annotations

from dpsql.files import Place


def command(folder: Place) -> str:
    """Return the command that restores the run in a private folder."""
    return f"dpsql restore {folder.name} --lake {folder.parent.parent}"


def repairable(folder: Place) -> str:
    """Return what to do about pieces that can be made anew."""
    return f"nothing was touched. Put it back as it was, or run: {command(folder)}"


def unrepairable(folder: Place) -> str:
    """Return what to do about pieces that only a backup has."""
    return f"nothing was touched. Put it back as it was, or begin a new run: {command(folder)} --new-run"
