"""Every command that docs/papers.md names, at a small size."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[3]
PAGE = (CHECKOUT / "docs" / "papers.md").read_text(encoding="utf-8")
SMALLER = {
    "growing.py retail FILE --pay 6000": ("growing.py", "retail", "conf/demo/wiki", "--pay", "20"),
    "sliding.py --times": ("sliding.py", "--times", "10000", "10000"),
    "qiu_yi.py 5": ("qiu_yi.py", "1"),
    "qiu_yi.py --sparse 1": ("qiu_yi.py", "--sparse", "1", "20000"),
    "dynamic_marginals.py": ("dynamic_marginals.py", "8", "4"),
    "lazysketch.py figures 3": ("lazysketch.py", "figures", "1"),
    "lazysketch.py lists": ("lazysketch.py", "lists", "100000"),
}


def commands() -> list[str]:
    """Return the commands of all lines; several of one line name the first one's script."""
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    named = [re.findall(r"`([^`]+)`", line.split("|")[-2]) for line in lines]
    scripts = [(name, names[0].split(" --only ")[0]) for names in named for name in names]
    out = [name if ".py" in name else f"{script} --only {name}" for name, script in scripts]
    return [*dict.fromkeys(out)]


def small(command: str) -> Sequence[str]:
    """Return the words of a command at a small size."""
    if command in SMALLER:
        return SMALLER[command]
    words = command.replace("FILE", "conf/demo/wiki").split()
    return [*words, "--scale", "0.004"] if words[0] == "table1.py" else words


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, for some commands write into its docs."""
    copy = tmp_path_factory.mktemp("papers") / "checkout"
    left_out = shutil.ignore_patterns(".*", "__pycache__")
    shutil.copytree(CHECKOUT, copy, ignore=left_out, symlinks=True)
    return copy


def test_every_table_has_commands() -> None:
    assert len(commands()) >= 10
    assert {line.count("|") for line in PAGE.splitlines() if line.startswith("|")} <= {6, 7}


@pytest.mark.parametrize("command", commands())
def test_the_command_of_a_line_runs(command: str, copy: Path) -> None:
    words = small(command)
    if words[-1] == "throughput" and shutil.which("cc") is None:
        pytest.skip("the paper's algorithms are in C, and there is no compiler")
    done = subprocess.run(
        [sys.executable, f"benchmarks/papers/{words[0]}", *words[1:]],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    written = (copy / "docs" / "accuracy.md").read_text(encoding="utf-8")
    changed = written != (CHECKOUT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    assert done.stdout or changed or "throughput" in command
