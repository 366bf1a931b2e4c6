"""The how-to pages on Spark: every block, in order, in one folder."""

import re
from pathlib import Path

from tests.docs.test_pages import FOLDER, run
from tests.docs.test_readme import place

__all__ = ["place"]


def test_the_howto_runs(place: Path) -> None:
    """What it quotes of `explain` is what explain says, too."""
    page = FOLDER / "howto.md"
    said = " ".join(run(page, place).split())
    quoted = re.search(r"> (A key is released.*)", page.read_text(encoding="utf-8"))
    assert quoted is not None and " ".join(quoted[1].split()) in said
    assert "22]" in said and "#en.wikipedia" in said and "Summary(triggers=" in said
