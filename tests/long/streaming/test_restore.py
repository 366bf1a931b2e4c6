"""Lost pieces: refused with the command that repairs them, and after it the run goes on to the same bits."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from click.testing import CliRunner

from dpsql.errors import LakeError
from dpsql.jobs.cli import main
from dpsql.lake import preflight, restore
from dpsql.lake.contributions import Contributions
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.manifest import Manifest
from dpsql.lake.new_run import begin_new_run, finish_new_run
from dpsql.lake.opening import open_run
from dpsql.lake.restore_points import Tables
from dpsql.lake.runs import Lake, read_run
from dpsql.lake.savepoints import take_savepoint
from dpsql.local.verification import verify_run
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret
from dpsql.published.public_rows import read_histogram
from dpsql.streaming.published_table import PublishedTable
from dpsql.udfs.bucket_state import BucketFiles
from tests.streaming.conftest import DAY, START, BrokenOff, break_off, run_file

MIDDLE = START + DAY + DAY // 2
END = START + 30 * DAY
OPTIONS = (("maxFilesPerTrigger", "1"),)


def copy(one: Any, name: str) -> Any:
    """The same run in another lake (never do that outside a test)."""
    lake = Lake(one.lake.root.with_name(name))
    shutil.copytree(one.lake.root, lake.root)
    return replace(one, lake=lake)


def admitted(one: Any) -> Counter[tuple[int, int, int, str]]:
    """Sums of all contributions that count, by window, trigger, key and column: whatever micro-batches and buckets they came in."""
    engine = json.loads((one.private / "engine.json").read_text())
    rows = read_rows(one.private / "contributions").to_pylist()
    rows = [
        row
        for row in rows
        if row["kind"] == 0 and not any(a <= row["batch"] <= b for a, b in engine["void"])
    ]
    sums: Counter[tuple[int, int, int, str]] = Counter()
    for row in rows:
        for name in ("weight", "users", "v0", "v1"):
            sums[row["window"], row["trigger"], row["key"], name] += row[name]
    return sums


def verified(one: Any) -> bool:
    return verify_run(one.lake, "demo", read_run(one.lake, "demo"), one.query, one.secret).identical


def dpsql(*words: str) -> str:
    done = CliRunner().invoke(main, [*words])
    assert done.exit_code == 0, done.output
    return done.output


def content(one: Any) -> dict[str, bytes]:
    """Every file of a lake but the one for `dpsql status`, which says how a start ended."""
    return {
        str(path): path.read_bytes()
        for path in one.lake.root.rglob("*")
        if path.is_file() and path.name != "status.json"
    }


def lose(one: Any, *operators: str) -> None:
    for operator in operators:
        shutil.rmtree(one.private / "checkpoints" / operator)


def lose_release(one: Any) -> None:
    lose(one, "release")
    for path in (one.private / "state").glob("release-*"):
        shutil.rmtree(path)


def lose_newest_version(table: Path) -> None:
    max((table / "_delta_log").glob("*.json")).unlink()


def lose_newest_listing(one: Any) -> None:
    lose_newest_version(one.private / "files")


OPERATORS = ("admission", "release")
FROM_THE_BEGINNING = "release: continues from the beginning\n"
DAMAGES: dict[str, tuple[Callable[[Any], None], tuple[str, ...], str]] = {
    "admission": (
        lambda one: lose(one, "admission"),
        (),
        "admission: continues after micro-batch 3\n",
    ),
    "both, other buckets": (
        lambda one: lose(one, *OPERATORS),
        ("--buckets", "3"),
        "release: continues after micro-batch 0\n",
    ),
    "release, with its state": (lose_release, (), FROM_THE_BEGINNING),
    "newest version of the histogram": (
        lambda one: lose_newest_version(one.lake.histogram("demo")),
        (),
        FROM_THE_BEGINNING,
    ),
    "newest version of the manifest": (
        lose_newest_listing,
        (),
        "release: its newest state is listed again\n",
    ),
}


@pytest.fixture
def bring(write: Any, visits: Any) -> Callable[[int, int], None]:
    def days(first: int, last: int) -> None:
        for day in range(first, last):
            write(visits(users=100, pages=2, days=1, first_day=day), 2, first=2 * day)

    return days


@pytest.fixture
def whole(case: Any, bring: Any) -> Any:
    """A run that has released one and a half of two days."""
    bring(0, 2)
    one = case(options=OPTIONS)
    one.go(MIDDLE)
    run_file(one)
    return one


def test_lost_pieces_are_refused_and_restored_to_the_same_bits(whole: Any, bring: Any) -> None:
    damaged = {what: copy(whole, f"damaged{i}") for i, what in enumerate(DAMAGES)}
    told = json.loads(dpsql("savepoint", "demo", "also", "--lake", str(whole.lake.root), "--json"))
    assert (told["name"], told["label"], Path(told["folder"]).is_dir()) == ("demo", "also", True)
    saved = take_savepoint(whole.lake, "demo", "middle")
    users = pd.read_parquet(saved.folder / "users")
    assert list(users.columns) == ["period", "user", "part", "fingerprint", "rows"]
    assert users["rows"].sum() == 400
    assert set(pd.read_parquet(saved.folder / "groups")["selected_at"]) == {1}
    assert {folder.stat().st_mode & 0o777 for folder in (saved.folder, saved.folder.parent)} == {
        0o700
    }
    with pytest.raises(LakeError, match="already exists"):
        take_savepoint(whole.lake, "demo", "middle")
    refused_savepoints(whole, saved.folder.with_suffix(".json"))
    # What query 2 has read of contributions is gone: no restore can be sure of what it was.
    unread = copy(whole, "unread")
    lose_newest_version(unread.private / "contributions")
    for start in (lambda: unread.go(END), lambda: restore.restore(unread.lake, "demo")):
        with pytest.raises(
            LakeError,
            match=r"contributions at .* has lost versions after \d+ that were read already.* --new-run$",
        ):
            start()
    bring(2, 4)
    whole.go(END)
    for what, (damage, options, says) in DAMAGES.items():
        one = damaged[what]
        damage(one)
        before = content(one)
        with pytest.raises(
            LakeError,
            match=rf"nothing was touched\. .*: dpsql restore demo --lake {one.lake.root}$",
        ):
            one.go(END)
        assert content(one) == before
        assert says in dpsql("restore", "demo", "--lake", str(one.lake.root), *options)
        if "release" in says and "listed" not in says:
            with pytest.raises(LakeError, match="was restored and not started since"):
                verified(one)
        one.go(END)
        assert verified(one), what
        assert one.histogram() == whole.histogram(), what
        assert admitted(one) == admitted(whole), what
        assert (
            dpsql("restore", "demo", "--lake", str(one.lake.root))
            == "nothing is missing: start the run as it is\n"
        )
    told = json.loads(dpsql("restore", "demo", "--lake", str(whole.lake.root), "--json"))
    assert told == {"name": "demo", "new_run": False, "listed": [], "batches": {}, "mended": []}
    with pytest.raises(
        LakeError,
        match=r"savepoint 'middle' is older than the last published trigger: .* --new-run",
    ):
        restore.restore(whole.lake, "demo", savepoint="middle")


def refused_savepoints(one: Any, file: Path) -> None:
    """Savepoints of a job that went on in between, or was restored since: they would renew allowances, or lose rows."""
    good = file.read_text()
    for change, message in (
        (
            lambda content: content["points"]["admission"].update(batch=1),
            "older than the last published trigger",
        ),
        (
            lambda content: content.update(void=[[7, 9]]),
            "before the run was restored to an earlier state",
        ),
    ):
        content = json.loads(good)
        change(content)
        file.write_text(json.dumps(content))
        with pytest.raises(LakeError, match=message):
            restore.restore(one.lake, "demo", savepoint=file.stem)
    file.write_text(good)
    versions = iter(range(100))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tables, "standing", lambda self: (next(versions),))
        with pytest.raises(LakeError, match="is running, and writes all the time"):
            take_savepoint(one.lake, "demo", "unsettled")


def test_without_the_protections_the_same_losses_do_harm(
    whole: Any, bring: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    twice = copy(whole, "twice")
    bring(2, 3)
    # Without the refusal of a fresh checkpoint, state that the manifest lists is overwritten.
    state = {path: path.read_bytes() for path in (whole.private / "state").rglob("*.users.parquet")}
    lose(whole, "admission")
    with monkeypatch.context() as patch:
        patch.setattr(preflight, "check", lambda *given: None)
        whole.go(END)
    assert [path for path, content in state.items() if path.read_bytes() != content]
    # Without the check of what is published, a replay publishes it again.
    lose(twice, "release")
    shutil.rmtree(next((twice.private / "state").glob("release-*")))
    before = len(twice.histogram())
    restore.restore(twice.lake, "demo")
    with monkeypatch.context() as patch:
        patch.setattr(PublishedTable, "check", lambda *given: set())
        twice.go(END)
    cells = Counter((row["window_start"], row["trigger"], row["page"]) for row in twice.histogram())
    assert sum(count == 2 for count in cells.values()) == before > 0


def test_a_new_run_leaves_published_windows_alone(whole: Any, bring: Any, tmp_path: Path) -> None:
    ended = whole
    bring(2, 4)
    shutil.rmtree(ended.private / "contributions")
    with pytest.raises(
        LakeError,
        match=r"contributions .* is lost.* begin a new run: dpsql restore demo --lake .* --new-run$",
    ):
        ended.go(END)
    ledger = Ledger(tmp_path / "ledger")
    begin_new_run(ended.lake, "demo", ended.query, Secret(bytes(range(32))), ledger)
    new = read_run(ended.lake, "demo")
    assert new.run_id != ended.run_id.run_id
    assert [line.run_id for line in ledger.lines()] == [new.run_id]
    # Broken off between its two renames, it is finished by the same command, and no other run begins meanwhile.
    ended.private.rename(ended.private.with_name(".demo.next"))
    with pytest.raises(
        LakeError,
        match=r"was begun and broken off; finish it: dpsql restore demo --lake .* --new-run$",
    ):
        open_run(
            ended.lake, "demo", ended.query, Secret(bytes(range(32))), ledger, ended.query.source
        )
    assert finish_new_run(ended.lake, "demo") == new
    old = ended.histogram()
    later = replace(ended, run_id=new)
    later.go(END)
    assert [
        row
        for row in later.histogram()
        if row["window_start"] in {row["window_start"] for row in old}
    ] == old
    assert {row["window_start"].day for row in later.histogram()} == {9, 10, 11, 12}
    assert verified(later)


def test_what_is_read_again_counts_once(case: Any, write: Any, visits: Any) -> None:
    write(visits(users=100, pages=2, days=2), 4)
    whole = case(options=OPTIONS)
    broken = case(options=OPTIONS)
    whole.go(END)
    # Three micro-batches are read, the third is not listed any more; nothing has ticked, so it is read again.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Contributions, "tick", break_off)
        with pytest.raises(BrokenOff):
            broken.go(END)
    run_file(broken)
    take_savepoint(broken.lake, "demo", "read")
    lose(broken, "admission")
    lose_newest_listing(broken)
    doubled = copy(broken, "doubled")
    saved = copy(broken, "saved")
    assert restore.restore(saved.lake, "demo", savepoint="read").batches == {
        "admission": 3,
        "release": -1,
    }
    saved.go(END)
    assert (saved.histogram(), admitted(saved)) == (whole.histogram(), admitted(whole))
    for one in (broken, doubled):
        assert restore.restore(one.lake, "demo").batches == {"admission": 2, "release": -1}
    broken.go(END)
    assert (broken.histogram(), admitted(broken)) == (whole.histogram(), admitted(whole))
    assert verified(broken)
    # Without leaving out what was read before, it counts twice.
    path = doubled.private / "engine.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "void": []}))
    doubled.go(END)
    assert doubled.histogram() != whole.histogram()


ONE_KEY = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 1e-6, max_groups_contributed = 1{options})
  page, COUNT(DISTINCT user_id) AS people
FROM visits
GROUP BY {keys}
"""
"""The sum that chooses keys is the count: it has no noise of its own."""


def one_page_each(table: pa.Table) -> pa.Table:
    """Keep of each day one visit of a user, so that all pages have as many users."""
    pages = table["page"].to_pylist()
    users = table["user_id"].to_pylist()
    is_kept = [int(user[1:]) % 3 == int(page[1:]) for user, page in zip(users, pages, strict=True)]
    return table.filter(pa.array(is_kept))


def test_counts_without_own_noise_are_restored(case: Any, write: Any, visits: Any) -> None:
    """Catches: a state that loses the end of key selection's path, the only noise that such counts have."""
    table = one_page_each(visits(users=240))
    write(table, 4)
    windows = ONE_KEY.format(
        options=", trigger_interval = INTERVAL 12 HOURS", keys="window(ts, '1 day'), page"
    )
    whole = case(windows, options=OPTIONS)
    restored = case(windows, options=OPTIONS)
    whole.go(END)
    restored.go(MIDDLE)
    run_file(restored)
    saved = take_savepoint(restored.lake, "demo", "middle")
    groups = pd.read_parquet(saved.folder / "groups")
    assert {"noise", "v0"} <= {*groups} and "p0" not in groups
    assert set(groups["selected_at"]) == {1}
    lose_release(restored)
    assert restore.restore(restored.lake, "demo", savepoint="middle").batches["release"] >= 0
    restored.go(END)
    assert len(whole.histogram()) == 12
    assert restored.histogram() == whole.histogram() == restored.of_local_engine(table)
    assert verified(restored)


def test_one_release_without_own_noise_is_restored(case: Any, write: Any, visits: Any) -> None:
    """Catches: a one-time release that counts records twice, or none, after its state was restored."""
    table = one_page_each(visits(users=240, days=1))
    write(table, 4)
    one = case(ONE_KEY.format(options="", keys="page"), max_users=1_000, max_keys=1_000)
    run_file(one)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(BrokenOff):
        patch.setattr("dpsql.streaming.context.RunContext.release", break_off)
        one.go(None)
    take_savepoint(one.lake, "demo", "read")
    lose(one, "admission")
    restore.restore(one.lake, "demo", savepoint="read")
    one.go(None)
    order = [("page", "ascending")]
    expected = one.locally(table, one.query.until_us(None)).sort_by(order).to_pylist()
    assert read_histogram(one.lake, "demo").sort_by(order).to_pylist() == expected
    assert len(expected) == 3 and verified(one)


def test_a_restore_that_breaks_off_changes_nothing_and_is_done_again(
    case: Any, write: Any, visits: Any
) -> None:
    write(visits(users=60, pages=2, days=1))
    whole = case()
    whole.go(END)
    run_file(whole)
    lose(whole, "admission", "release")
    kept = (whole.private / "engine.json").read_bytes()
    for owner, name in (
        (BucketFiles, "store"),
        (Manifest, "commit"),
        (restore, "_skip_files"),
        (restore, "write_engine"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, break_off)
            with pytest.raises(BrokenOff):
                restore.restore(whole.lake, "demo")
        assert (whole.private / "engine.json").read_bytes() == kept
    before = whole.histogram()
    assert restore.restore(whole.lake, "demo").batches == {"admission": 0, "release": 0}
    write(visits(users=60, pages=2, days=1, first_day=40), first=1)
    assert whole.go(START + 60 * DAY).records == 120
    assert whole.histogram()[: len(before)] == before
