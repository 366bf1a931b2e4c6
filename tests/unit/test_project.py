"""The project's own rules: who may import whom, how long a module may be, and what the Makefile says on a machine that lacks something."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
ROOMS = ("jobs", "dpsql", "udfs")
MAX_LINES = 400

# A package that is named here may be imported in these places only.
PLACES = {
    "pyspark": ("dpsql/streaming", "dpsql/__init__.py"),
    "delta": ("dpsql/streaming",),
    "py4j": ("dpsql/streaming",),
    "duckdb": ("dpsql/local",),
    "sqlglot": ("dpsql/sql", "dpsql/local"),
    "dp_accounting": ("dpsql/calibration.py", "dpsql/accountant.py"),
    "deltalake": ("dpsql/delta_rows.py", "dpsql/lake.py", "dpsql/published.py", "dpsql/new_file.py", "dpsql/local", "dpsql/streaming"),
    "click": ("jobs",),
    "rich": ("jobs",),
    "matplotlib": ("dpsql/charts.py",),
}
# `udfs` runs on executors: it knows numbers, columns and one cipher.
UDFS_MAY = {"cryptography", "mpmath", "numpy", "pyarrow", "scipy", "udfs"}
# What these return depends on more than their arguments.
HIDDEN_STATE = {"datetime", "logging", "random", "secrets", "socket", "subprocess", "time"}
# Only these may look at the environment besides jobs/.
MAY_READ_ENVIRONMENT = {"dpsql/jars.py", "dpsql/streaming/session.py"}


def modules(*rooms: str) -> Iterator[tuple[str, ast.Module]]:
    for room in rooms:
        for path in sorted((CHECKOUT / room).rglob("*.py")):
            yield path.relative_to(CHECKOUT).as_posix(), ast.parse(path.read_text(), str(path))


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "write imports in full"
            yield node.module or ""


def test_imports_go_one_way() -> None:
    below = {"jobs": {"jobs", "dpsql", "udfs"}, "dpsql": {"dpsql", "udfs"}, "udfs": {"udfs"}}
    wrong = [
        f"{path} imports {name}"
        for path, tree in modules(*ROOMS)
        for name in imported(tree)
        if name.split(".")[0] in ROOMS and name.split(".")[0] not in below[path.split("/")[0]]
    ]
    assert wrong == []


def test_imports_of_engines_stay_in_their_places() -> None:
    wrong = [
        f"{path} imports {name}"
        for path, tree in modules(*ROOMS)
        for name in imported(tree)
        if (places := PLACES.get(name.split(".")[0])) and not path.startswith(places)
    ]
    assert wrong == []


def test_imports_of_udfs_are_pure() -> None:
    wrong = [
        f"{path} imports {name}"
        for path, tree in modules("udfs")
        for name in imported(tree)
        if (top := name.split(".")[0]) not in UDFS_MAY and (top not in sys.stdlib_module_names or top in HIDDEN_STATE)
    ]
    assert wrong == []


def test_imports_of_the_two_engines_do_not_touch() -> None:
    other = {"dpsql/local": "dpsql.streaming", "dpsql/streaming": "dpsql.local"}
    wrong = [
        f"{path} imports {name}"
        for path, tree in modules(*other)
        for name in imported(tree)
        if name.startswith(other["/".join(path.split("/")[:2])])
    ]
    assert wrong == []


def test_only_jobs_reads_argv_and_the_environment() -> None:
    def reads(tree: ast.Module) -> bool:
        named = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("os", "sys")
        }
        return bool(named & {"environ", "getenv", "argv"})

    assert {path for path, tree in modules("dpsql", "udfs") if reads(tree)} <= MAY_READ_ENVIRONMENT


def test_lines_of_a_module_are_few() -> None:
    folders = (*ROOMS, "tests", "benchmarks")
    long = {
        path.as_posix(): count
        for room in folders
        for path in (CHECKOUT / room).rglob("*.py")
        if (count := len(path.read_text().splitlines())) > MAX_LINES
    }
    assert long == {}


def test_lines_of_requirements_lock_pin_everything() -> None:
    lock = (CHECKOUT / "requirements.lock").read_text()
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    pinned = {name.lower().replace("_", "-") for name in re.findall(r"(?m)^([A-Za-z0-9_.-]+)==", lock)}
    asked = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    assert {re.split(r"[<>=\[]", one)[0].lower().replace("_", "-") for one in asked} <= pinned
    assert len(re.findall(r"--hash=sha256:", lock)) >= len(pinned)


JAVA = '#!/bin/sh\necho "Picked up JAVA_TOOL_OPTIONS: -Dx" >&2\necho \'openjdk version "{}" 2025-01-01\' >&2\n'
OLD_PYTHON = "#!/bin/sh\nexit 1\n"


@pytest.mark.parametrize(
    ("tools", "environment", "says"),
    [
        ({"git": "", "python3": "real"}, {}, "Java is missing: install a JRE 17 or 21"),
        ({"git": "", "python3": "real", "java": JAVA.format("11.0.2")}, {}, "is version 11.0.2"),
        ({"git": "", "python3": "real", "java": JAVA.format("1.8.0_312")}, {}, "is version 1.8.0_312"),
        ({"git": "", "python3": "real", "java": JAVA.format("25")}, {}, "is version 25"),
        ({"git": "", "python3": "real", "java": "#!/bin/sh\nexit 1\n"}, {}, "is version unknown"),
        (
            {"git": "", "python3": "real", "java": JAVA.format("17.0.1")},
            {"JAVA_HOME": "/nowhere"},
            "JAVA_HOME is /nowhere, which has no bin/java",
        ),
        ({"git": "", "java": JAVA.format("17.0.1")}, {}, "Python 3.11 or newer is missing"),
        ({"git": "", "java": JAVA.format("21"), "python3": OLD_PYTHON}, {}, "Python 3.11 or newer is missing"),
        (
            {"git": "", "java": JAVA.format("21"), "python3": '#!/bin/sh\ncase "$2" in *ensurepip*) exit 1 ;; esac\n'},
            {},
            "apt install python3-venv",
        ),
        ({"java": JAVA.format("21"), "python3": "real"}, {}, "git is missing"),
    ],
)
def test_make_says_in_one_line_what_is_missing(tmp_path: Path, tools: dict[str, str], environment: dict[str, str], says: str) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("sh", "cat", "grep", "sed", "expand", "make"):
        (folder / tool).symlink_to(shutil.which(tool) or f"/bin/{tool}")
    for name, text in tools.items():
        if text == "real":
            (folder / name).symlink_to(os.path.realpath(shutil.which("python3") or ""))
        else:
            (folder / name).write_text(text or "#!/bin/sh\n")
            (folder / name).chmod(0o755)
    shutil.copytree(CHECKOUT / ".ci", tmp_path / ".ci")
    shutil.copy(CHECKOUT / "Makefile", tmp_path)
    for target in ("setup", "demo", "test", "check"):
        clean = {"PATH": str(folder), "HOME": str(tmp_path), **environment}
        done = subprocess.run([folder / "make", target], cwd=tmp_path, env=clean, capture_output=True, text=True, check=False)
        assert done.returncode == 2, done
        assert says in done.stderr
        assert len((done.stdout + done.stderr).splitlines()) == 1
    assert not (tmp_path / ".venv").exists()


def test_ci_runs_what_a_contributor_runs() -> None:
    lines = [line for line in (CHECKOUT / ".ci" / "run").read_text().splitlines() if line.startswith("make")]
    assert lines == ["make setup", "make check", "make test"]
    assert os.access(CHECKOUT / ".ci" / "run", os.X_OK)
