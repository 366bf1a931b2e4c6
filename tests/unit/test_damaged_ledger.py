"""A damaged ledger: what messages say to do works."""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from dpsql.privacy.secret import default_secret_path
from tests.unit.test_cli import dp, private_input, refused, work
from tests.unit.workplace import published

__all__ = ["work"]

HALF = 150
DAMAGES = {
    "cut": lambda line: line[:HALF],
    "empty": lambda line: b"",
    "no UTF-8": lambda line: line[:HALF] + b"\xff\xfe" + line[HALF:],
    "twice": lambda line: line + line[HALF:],
    "zeros": lambda line: bytes(len(line)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_ledger_line_has_a_way_on(work: Path, damage: str) -> None:
    """Catches: a message that names no command, or one after which the run stands still or nothing can be spent."""
    private_input(work)
    run_id = published()
    assert dp("try", "views.sql").exit_code == 0
    folder = default_secret_path(os.environ).parent / "ledger"
    line = folder / "000002.json"
    line.write_bytes(DAMAGES[damage](line.read_bytes()))
    for words in (
        ["budget"],
        ["try", "views.sql"],
        ["restore", "views", "--lake", "lake", "--ledger"],
    ):
        refused(*words, says="Tries, and runs without a lake, are then counted no more")
    move, restore = re.findall("`(.*?)`", dp("budget").stderr)
    subprocess.run(shlex.split(move), check=True)
    done = dp(*shlex.split(restore.replace("NAME", "views").replace("DIR", "lake"))[1:])
    assert (done.exit_code, done.stdout) == (0, f"run {run_id} is written down again\n")
    assert published() == run_id  # it goes on, with its noise
    assert [run["run_id"] for run in json.loads(dp("budget", "--json").stdout)[0]["runs"]] == [
        run_id
    ]
    assert dp("try", "views.sql").exit_code == 0


def test_a_damaged_home_of_the_ledger_is_written_again(work: Path) -> None:
    """Catches: an internal error where the bytes of the file are no text."""
    private_input(work)
    assert dp("try", "views.sql").exit_code == 0
    home = default_secret_path(os.environ).parent / "ledger" / "home"
    before = home.read_bytes()
    for content in (b"\xff\xfe", b"", b"\x00" * 9, b"/" * 5000):
        home.write_bytes(content)
        assert dp("try", "views.sql").exit_code == 0
        assert home.read_bytes() == before
