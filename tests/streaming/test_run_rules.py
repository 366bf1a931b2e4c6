"""One run id, one input: what a lake may lose, and when the same name is a new run with other noise and another ledger line."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from dpsql.errors import LakeError
from dpsql.lake.opening import open_run
from dpsql.lake.runs import Lake
from dpsql.privacy.ledger import Ledger
from tests.streaming.conftest import DAY, START


def opened(one: Any, ledger: Ledger) -> Any:
    """Bind the case's name as `dpsql run` does, with a ledger beside a secret."""
    one.run_id = open_run(one.lake, "demo", one.query, one.secret, ledger, one.query.source)
    return one


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_lake_that_lost_what_it_published_never_goes_on(
    case: Any, write: Any, visits: Any, tmp_path: Path
) -> None:
    """Everything deleted but run.json; an older copy put back; then the lake deleted and other input: refused, and elsewhere a new run."""
    ledger = Ledger(tmp_path / "secrets" / "ledger")
    write(visits(days=1))
    one = opened(case(), ledger)
    root = Path(one.lake.root)
    shutil.copytree(root, tmp_path / "before")
    one.go(START + DAY, ledger=ledger, buckets=(1, 1))
    entry = ledger.register.find(one.run_id.run_id)
    assert entry is not None and entry.closed_us == START + DAY
    newest = one.histogram()
    assert len(newest) > 3
    root.rename(tmp_path / "newest")
    shutil.copytree(tmp_path / "before", root)  # as if everything but run.json had been deleted
    write(visits(days=1, pages=5))  # and there is other input
    before = contents(root / "public")
    for _ in range(2):
        with pytest.raises(
            LakeError,
            match=r"has published triggers up to 2023-12-10T00:00:00Z.*does not have these.*another --name",
        ):
            opened(one, ledger).go(START + DAY, ledger=ledger, buckets=(1, 1))
    assert contents(root / "public") == before
    assert len(ledger.lines()) == 1
    shutil.rmtree(
        root
    )  # a deleted lake: nothing is forgotten, and what comes elsewhere is another run
    with pytest.raises(LakeError, match=r"released up to 2023-12-10T00:00:00Z.*mounted"):
        opened(one, ledger)
    root = tmp_path / "second"
    one.lake = Lake(root)
    again = opened(one, ledger)
    again.go(START + DAY, ledger=ledger, buckets=(1, 1))
    assert len(ledger.lines()) == len({line.run_id for line in ledger.lines()}) == 2
    shown = {(row["trigger"], row["page"]): row["total"] for row in again.histogram()}
    both = [
        (row["total"], shown[row["trigger"], row["page"]])
        for row in newest
        if (row["trigger"], row["page"]) in shown
    ]
    assert len(both) > 3 and all(a != b for a, b in both)
    shutil.copytree(root, tmp_path / "elsewhere")
    with pytest.raises(LakeError, match="is in two lakes"):
        open_run(
            Lake(tmp_path / "elsewhere"), "demo", one.query, one.secret, ledger, one.query.source
        )
    root.rename(tmp_path / "moved")
    one.lake = Lake(tmp_path / "moved")
    assert (
        opened(one, ledger).go(START + DAY, ledger=ledger, buckets=(1, 1)).triggers == 0
    )  # a moved lake goes on, here with nothing to do
    assert len(ledger.lines()) == 2
