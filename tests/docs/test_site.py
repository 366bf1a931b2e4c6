"""The site of the documentation, made by Sphinx: every page, a search, and no link that leads nowhere."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs.test_readme import CHECKOUT

DOCS = CHECKOUT / "docs"


def build(docs: Path, out: Path) -> subprocess.CompletedProcess[str]:
    words = ["-m", "sphinx", "-q", "-W", "--keep-going", str(docs), str(out)]
    return subprocess.run(
        [sys.executable, *words], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )


def test_every_page_is_on_the_site_and_can_be_found(tmp_path: Path) -> None:
    done = build(DOCS, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    pages = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")}
    assert [page for page in pages if not (tmp_path / f"{page}.html").exists()] == []
    assert "url=README.html" in (tmp_path / "index.html").read_text()
    index = (tmp_path / "searchindex.js").read_text()
    words = json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))
    assert {*words["docnames"]} == pages and "quantil" in words["terms"]
    first = (tmp_path / "README.html").read_text()
    assert [page for page in pages - {"README"} if f'href="{page}.html"' not in first] == []


def test_links_that_lead_nowhere_stop_the_build(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    shutil.copy(DOCS / "conf.py", docs)
    (docs / "README.md").write_text(
        "# First\n\n[a page](no-page.md), [a heading](other.md#no-heading)\n"
    )
    (docs / "other.md").write_text("# Other\n")
    done = build(docs, tmp_path / "site")
    assert done.returncode != 0
    assert "no-page.md" in done.stderr and "no-heading" in done.stderr
