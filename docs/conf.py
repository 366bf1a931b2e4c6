"""How Sphinx makes a site of these pages: `make site`. A warning, like a link that leads nowhere, fails the build."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from dpsql import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parent
LINK = re.compile(r"\[([^\[\]]*)\]\((\.\./[^)]*)\)")
"""A link that leaves the folder of its page."""

project = "dpsql"
release = __version__
root_doc = "README"
extensions = ["myst_parser"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"dpsql {release}"
html_show_copyright = False
html_static_path: list[str] = []


def contents() -> str:
    """Return the tree of all pages, for the site's sidebar; how-to pages are in the order of the index."""
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    first = ["tutorial", *re.findall(r"^\* .*\]\((howto/[\w-]+)\.md\)", index, flags=re.MULTILINE)]
    pages = [path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")]
    others = sorted(page for page in pages if page not in (*first, root_doc))
    return "\n".join(["", "```{toctree}", ":hidden:", "", *first, *others, "```", ""])


def adapt(app: Sphinx, page: str, source: list[str]) -> None:
    """Add the tree to the first page, and name files of the repository that no page is about instead of linking to them."""
    here = (DOCS / page).parent
    text = LINK.sub(lambda link: link[0] if _is_page(here, link[2]) else link[1], source[0])
    source[0] = text + (contents() if page == root_doc else "")


def _is_page(here: Path, target: str) -> bool:
    return (here / target.partition("#")[0]).resolve().is_relative_to(DOCS)


def begin_at_the_index(app: Sphinx, problem: Exception | None) -> None:
    """Lead who opens the folder to its first page."""
    page = f'<meta http-equiv="refresh" content="0; url={root_doc}.html">'
    (Path(app.outdir) / "index.html").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Join the build, as Sphinx calls it."""
    app.connect("source-read", adapt)
    app.connect("build-finished", begin_at_the_index)
