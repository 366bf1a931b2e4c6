"""The how-to pages on Spark: every block, in order, in one folder."""

import re
from pathlib import Path

from tests.docs.test_pages import FOLDER, HOW_TO, WITH_PROGRAMS, run
from tests.docs.test_readme import place

__all__ = ["place"]


def test_the_howto_runs(place: Path) -> None:
    """What it quotes of `explain` is what explain says, too."""
    pages = (FOLDER / "howto" / "own-program.md", *HOW_TO)  # it makes the run that others read
    pages = [page for page in dict.fromkeys(pages) if page in WITH_PROGRAMS]
    said = " ".join(" ".join(run(page, place) for page in pages).split())
    page = FOLDER / "howto" / "missing-keys.md"
    quoted = re.search(r"> (A key is released.*)", page.read_text(encoding="utf-8"))
    assert quoted is not None and " ".join(quoted[1].split()) in said
    assert ", 58, 54]" in said and "#en.wikipedia" in said and "Summary(triggers=" in said
