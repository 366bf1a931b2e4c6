"""Every file of a run that a power cut or a full disk may leave empty or cut: named, mended by the command in the message, and nothing is lost."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpsql.errors import DpsqlError, LakeError
from dpsql.lake.catch_up import read_catch_up
from tests.long.streaming.test_restore import content, copy, dpsql, verified
from tests.streaming.conftest import DAY, START, BrokenOff, break_off, run_file

MIDDLE = START + DAY // 2
END = START + 30 * DAY


def newest(folder: Path, pattern: str = "*") -> Path:
    """The file with the largest number in a folder."""
    return max(
        (path for path in folder.glob(pattern) if path.stem.isdigit()),
        key=lambda path: int(path.stem),
    )


def checkpoint(one: Any, operator: str) -> Path:
    return Path(one.private / "checkpoints" / operator)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def newest_state(one: Any, operator: str) -> Path:
    return newest(checkpoint(one, operator) / "state" / "0" / "0", "*.delta")


def newest_commit(table: Path) -> Path:
    return newest(table / "_delta_log", "*.json")


ROWS: dict[str, tuple[Callable[[Any], Path], Callable[[Path], None]]] = {
    "offsets of admission": (lambda one: newest(checkpoint(one, "admission") / "offsets"), empty),
    "commits of admission": (lambda one: newest(checkpoint(one, "admission") / "commits"), empty),
    "offsets of release": (lambda one: newest(checkpoint(one, "release") / "offsets"), cut),
    "state of admission": (lambda one: newest_state(one, "admission"), cut),
    "state of release": (lambda one: newest_state(one, "release"), cut),
    "source log": (lambda one: newest(checkpoint(one, "admission") / "sources" / "0"), cut),
    "metadata": (lambda one: checkpoint(one, "admission") / "metadata", empty),
    "commit of contributions": (lambda one: newest_commit(one.private / "contributions"), cut),
    "commit of files": (lambda one: newest_commit(one.private / "files"), cut),
    "commit of the histogram": (lambda one: newest_commit(one.lake.histogram("demo")), cut),
    "catch_up.json": (lambda one: one.private / "catch_up.json", cut),
}
"""What -> which file, and what is done to it."""


def go_on(one: Any, file: Path, what: str) -> None:
    """Start; refused with the file's name and a command; run just that; start again."""
    before = content(one)
    with pytest.raises(LakeError) as refused:
        one.go(END)
    said = str(refused.value)
    assert (str(file) in said or str(file.parent) in said) and "nothing was touched" in said, what
    assert content(one) == before, what
    command = re.search(r"run: dpsql (restore demo --lake \S+)$", said)
    assert command, said
    assert "nothing is lost" not in dpsql(*shlex.split(command[1])), what
    one.go(END)


@pytest.fixture
def whole(case: Any, write: Any, visits: Any) -> Any:
    """A run that has released a trigger; more input has come since."""
    write(visits(users=40, pages=2, days=1), 2)
    one = case(options=(("maxFilesPerTrigger", "1"),))
    one.go(MIDDLE, buckets=(1, 1))
    run_file(one)
    return one


def test_every_damaged_file_is_named_and_mended_by_the_command(
    whole: Any, write: Any, visits: Any
) -> None:
    damaged = {what: copy(whole, f"damaged{i}") for i, what in enumerate(ROWS)}
    write(visits(users=40, pages=2, days=1, first_day=1), 1, first=2)
    whole.go(END)
    assert len(whole.histogram()) > 4
    for what, (find, damage) in ROWS.items():
        one = damaged[what]
        file = find(one)
        damage(file)
        go_on(one, file, what)
        assert one.histogram() == whole.histogram(), what
        assert (
            dpsql("restore", "demo", "--lake", str(one.lake.root))
            == "nothing is missing: start the run as it is\n"
        ), what
    assert verified(one)


def test_what_only_spark_notices_is_told_with_a_command_that_works(
    whole: Any, write: Any, visits: Any
) -> None:
    """No checksum tells of a state file of Spark's that is cut on a disk without them, or gone."""
    damaged = {what: copy(whole, what) for what in ("cut", "gone")}
    write(visits(users=40, pages=2, days=1, first_day=1), 1, first=2)
    whole.go(END)
    for what, one in damaged.items():
        file = newest_state(one, "admission" if what == "cut" else "release")
        file.with_name(f".{file.name}.crc").unlink()
        if what == "cut":
            cut(file)
        else:
            file.unlink()
        with pytest.raises(DpsqlError) as failed:
            one.go(END)
        said = str(failed.value)
        assert "starting again goes on" not in said
        command = re.search(r"[Rr]un: dpsql (restore demo --lake \S+ --checkpoints)$", said)
        assert command, said
        dpsql(*shlex.split(command[1]))
        one.go(END)
        assert one.histogram() == whole.histogram()


def test_a_lost_note_of_an_interrupted_catch_up(case: Any, write: Any, visits: Any) -> None:
    """The tick is there and nothing is released: its number must not be given twice, and what it closed is released."""
    write(visits(users=40, pages=2, days=1), 2)
    reference = case()
    one = case()
    reference.go(END, buckets=(1, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpsql.streaming.context.RunContext.release", break_off)
        with pytest.raises(BrokenOff):
            one.go(END, buckets=(1, 1))
    run_file(one)
    assert one.histogram() == []
    # The tick's own commit is cut, too.
    cut(newest_commit(one.private / "contributions"))
    with pytest.raises(
        LakeError,
        match=r"\.json, the newest commit of the table contributions, is damaged; nothing was touched",
    ):
        one.go()
    cut(one.private / "catch_up.json")
    told = dpsql("restore", "demo", "--lake", str(one.lake.root))
    assert (
        "catch_up.json: made anew" in told
        and "contributions: its newest commit was damaged" in told
    )
    assert read_catch_up(one.private).released
    one.go(END)
    assert one.histogram() == reference.histogram()
