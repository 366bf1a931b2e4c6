"""The project's own rules: who may import whom, how long a module may be, and what the Makefile says on a machine that lacks something. A
rule is a function of a checkout that names what breaks it. It is held against this checkout, and against planted violations."""

import ast
import builtins
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.unit.structure import CHECKOUT, by_folder, plant

ROOMS = ("jobs", "dpsql", "udfs")
MAX_LINES = 600

# A package that is named here may be imported in these places only.
PLACES = {
    "pyspark": ("dpsql/streaming", "dpsql/__init__.py"),
    "delta": ("dpsql/streaming",),
    "py4j": ("dpsql/streaming",),
    "duckdb": ("dpsql/local", "dpsql/view/reading.py"),
    "sqlglot": ("dpsql/sql", "dpsql/local"),
    "deltalake": (
        "dpsql/files.py",
        "dpsql/lake",
        "dpsql/local",
        "dpsql/published",
        "dpsql/streaming",
    ),
    "click": ("jobs",),
    "rich": ("jobs",),
    "matplotlib": ("dpsql/view",),
    "jinja2": ("dpsql/view",),
    "markupsafe": ("dpsql/view",),
}
# `udfs` runs on executors: it knows numbers, columns and one cipher, and what it returns depends on its arguments alone.
UDFS_MAY = {"cryptography", "numpy", "pyarrow", "scipy.special", "udfs"}
UDFS_MAY |= {
    "__future__",
    "abc",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "fractions",
    "functools",
    "hashlib",
    "itertools",
    "math",
}
UDFS_MAY |= {"operator", "re", "struct", "typing", "zlib"}
# Files are read and written, and named at random, by these.
UDFS_FILES = ("udfs/bucket_state.py", "udfs/task_files.py", "udfs/task_files.py")
ONLY_FILES = {
    "pyarrow.csv",
    "pyarrow.dataset",
    "pyarrow.feather",
    "pyarrow.fs",
    "pyarrow.json",
    "pyarrow.orc",
    "pyarrow.parquet",
}
FILES_MAY = {"json", "os", "urllib.parse", "uuid"}
# Around the stages: frames of Spark, and what the driver tells, come in and go out here.
UDFS_FRAMES = ("udfs/release_plan.py", "udfs/task_intake.py", "udfs/worker.py")
FRAMES_MAY = {"errno", "gc", "json", "pandas", "warnings"}
# Only these may look at the environment besides jobs/.
MAY_READ_ENVIRONMENT = {
    "dpsql/frame_session.py",  # where the command line's secret is
    "dpsql/jars.py",
    "dpsql/streaming/session.py",
}
ENVIRONMENT = {
    "environ",
    "environb",
    "getenv",
    "getenvb",
    "putenv",
    "unsetenv",
    "argv",
    "orig_argv",
}
# What pyspark keeps to itself.
INTERNALS = {
    "_jvm",
    "_jdf",
    "_jc",
    "_jsc",
    "_jsq",
    "_jsparkSession",
    "_jreader",
    "_jwrite",
    "_gateway",
    "_ensure_initialized",
    "_to_seq",
}
# Ways to import what no rule here would see.
HIDDEN_IMPORTS = {
    "__import__",
    "eval",
    "exec",
    "exec_module",
    "import_module",
    "load_module",
    "module_from_spec",
    "resolve_name",
}
HIDDEN_IMPORTS |= {"run_module", "run_path", "runpy", "spec_from_file_location", "zipimport"}

Violations = list[str]
parsed = cache(ast.parse)
"""Once for all rules that read a text."""


def modules(checkout: Path, *rooms: str) -> Iterator[tuple[str, ast.Module]]:
    for room in rooms:
        for path in sorted((checkout / room).rglob("*.py")):
            yield path.relative_to(checkout).as_posix(), parsed(path.read_text())


def imported(path: str, tree: ast.Module) -> Iterator[str]:
    """Every name that is imported, wherever it stands: modules, and what is taken from them, which may be modules too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (by_folder(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = path.removesuffix(".py").split("/")[: -node.level] if node.level else []
            module = ".".join([*package, *([node.module] if node.module else [])])
            yield by_folder(module)
            yield from (by_folder(f"{module}.{alias.name}") for alias in node.names)


def names(tree: ast.Module) -> Iterator[str]:
    """Every attribute and built-in that is used, every name that is imported, and every text that `getattr` is given. Of other objects than
    `builtins`, `eval` and `exec` are methods of their own: those of Spark's expressions, say."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            built_in = isinstance(node.value, ast.Name) and node.value.id in (
                "builtins",
                "__builtins__",
            )
            yield from (node.attr,) if built_in or node.attr not in ("eval", "exec") else ()
        elif isinstance(node, ast.Name) and hasattr(builtins, node.id):
            yield node.id
        elif isinstance(node, ast.alias):
            yield from node.name.split(".")
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "getattr"
        ):
            yield from (str(given.value) for given in node.args if isinstance(given, ast.Constant))


def is_below(name: str, packages: tuple[str, ...] | set[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def is_in(path: str, places: tuple[str, ...]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)


def imports_are_written_in_full(checkout: Path) -> Violations:
    """No relative import, and none that is made while the program runs: the other rules read what is written."""
    relative = [
        f"{path} imports relatively"
        for path, tree in modules(checkout, *ROOMS)
        if any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree))
    ]
    return relative + [
        f"{path} uses {name}"
        for path, tree in modules(checkout, *ROOMS)
        for name in sorted({*names(tree)} & HIDDEN_IMPORTS)
    ]


def imports_of_engines_stay_in_their_places(checkout: Path) -> Violations:
    return [
        f"{path} imports {name}"
        for path, tree in modules(checkout, *ROOMS)
        for name in imported(path, tree)
        if (places := PLACES.get(name.split(".")[0])) and not is_in(path, places)
    ]


def imports_of_udfs_are_pure(checkout: Path) -> Violations:
    wrong = []
    for path, tree in modules(checkout, "udfs"):
        files = is_in(path, UDFS_FILES)
        frames = is_in(path, UDFS_FRAMES)
        may = UDFS_MAY | (FILES_MAY if files else set()) | (FRAMES_MAY if frames else set())
        wrong += [
            f"{path} imports {name}"
            for name in imported(path, tree)
            if not (is_below(name, may) or name == "scipy" or name == "urllib")
            or (is_below(name, ONLY_FILES) and not files)
        ]
        wrong += [
            f"{path} uses {name}"
            for name in sorted({*names(tree)} & {"open", "random", "default_rng"})
            if not files
        ]
    return wrong


def internals_of_spark_have_one_place(checkout: Path) -> Violations:
    """There a version that moves is looked after; `tests/streaming/test_internals.py` has a canary for each."""
    return [
        f"{path} uses {name}"
        for path, tree in modules(checkout, *ROOMS)
        for name in sorted({*names(tree)} & INTERNALS)
        if path != "dpsql/streaming/internals.py"
    ]


def only_jobs_reads_argv_and_the_environment(checkout: Path) -> Violations:
    return [
        f"{path} reads {name}"
        for path, tree in modules(checkout, "dpsql", "udfs")
        for name in sorted({*names(tree)} & ENVIRONMENT)
        if path not in MAY_READ_ENVIRONMENT
    ]


def lines_of_a_module_are_few(checkout: Path) -> Violations:
    counts = {
        path.relative_to(checkout).as_posix(): len(path.read_text().splitlines())
        for room in (*ROOMS, "tests", "benchmarks")
        for path in sorted((checkout / room).rglob("*.py"))
    }
    return [f"{path} has {count} lines" for path, count in counts.items() if count > MAX_LINES]


def lines_of_requirements_lock_pin_everything(checkout: Path) -> Violations:
    lock = (checkout / "requirements.lock").read_text()
    project = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
    blocks = re.split(r"(?m)^(?=[A-Za-z0-9_.-]+==)", lock)[1:]
    pinned = {
        re.split("==", block)[0].lower().replace("_", "-"): "--hash=sha256:" in block
        for block in blocks
    }
    wanted = [
        *project["dependencies"],
        *(package for extra in project["optional-dependencies"].values() for package in extra),
    ]
    asked = {re.split(r"[<>=\[]", one)[0].strip().lower().replace("_", "-") for one in wanted}
    missing = [
        f"{name} is not pinned" for name in sorted(asked - set(pinned) - {project.get("name")})
    ]
    return missing + [f"{name} has no hash" for name, hashed in pinned.items() if not hashed]


def ci_runs_what_a_contributor_runs(checkout: Path) -> Violations:
    script = checkout / ".ci" / "run"
    lines = [
        line.strip() for line in script.read_text().splitlines() if line.lstrip().startswith("make")
    ]
    wanted = ["make setup", "make check", "make test"]
    return ([f".ci/run runs {lines}"] if lines != wanted else []) + (
        [] if os.access(script, os.X_OK) else [".ci/run cannot be run"]
    )


RULES = (
    imports_are_written_in_full, imports_of_engines_stay_in_their_places, imports_of_udfs_are_pure, internals_of_spark_have_one_place,
    only_jobs_reads_argv_and_the_environment, lines_of_a_module_are_few,
    lines_of_requirements_lock_pin_everything, ci_runs_what_a_contributor_runs,
)  # fmt: skip
LATER = "def f():\n    {}\n"
FOR_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {}\n"
PROJECT = '[project]\ndependencies = ["numpy>=2,<3"]\n[project.optional-dependencies]\ndev = ["flask_cors>=5"]\n'
CI = "make setup\nmake check\nmake test\n"
PLACED = imports_of_engines_stay_in_their_places
PINNED = lines_of_requirements_lock_pin_everything
LOCK = "numpy==2.1 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\nflask-cors==5\n"
# Rule, file, text that breaks the rule, what the rule says of it.
PLANTED: list[tuple[Callable[[Path], Violations], str, str, str]] = [
    (imports_are_written_in_full, "udfs/keys.py", "from . import grid", "imports relatively"),
    (
        imports_are_written_in_full,
        "dpsql/local/spark_types.py",
        LATER.format("from ..streaming import workers"),
        "imports relatively",
    ),
    (
        imports_are_written_in_full,
        "udfs/keys.py",
        "import importlib\nimportlib.import_module('dpsql')",
        "uses import_module",
    ),
    (
        imports_are_written_in_full,
        "udfs/keys.py",
        "from importlib import import_module as load\nload('dpsql')",
        "uses import_module",
    ),
    (
        imports_are_written_in_full,
        "jobs/cli.py",
        LATER.format("__import__('pyspark')"),
        "uses __import__",
    ),
    (
        imports_are_written_in_full,
        "dpsql/lake/runs.py",
        "import builtins\ngetattr(builtins, '__import__')('pyspark')",
        "uses __import__",
    ),
    (imports_are_written_in_full, "dpsql/lake/runs.py", "exec('import pyspark')", "uses exec"),
    (
        PLACED,
        "dpsql/lake/runs.py",
        LATER.format("from pyspark.sql import types"),
        "imports pyspark.sql",
    ),
    (PLACED, "dpsql/streaming_extra.py", "import pyspark", "imports pyspark"),
    (
        PLACED,
        "dpsql/mechanisms/histogram/accounting.py",
        "import sqlglot as parser",
        "imports sqlglot",
    ),
    (PLACED, "dpsql/privacy/budget.py", FOR_TYPES.format("import click"), "imports click"),
    (imports_of_udfs_are_pure, "udfs/keys.py", "import pandas", "imports pandas"),
    (imports_of_udfs_are_pure, "udfs/keys.py", "from scipy import stats", "imports scipy.stats"),
    (imports_of_udfs_are_pure, "udfs/keys.py", LATER.format("import time"), "imports time"),
    (imports_of_udfs_are_pure, "udfs/keys.py", "import os", "imports os"),
    (imports_of_udfs_are_pure, "udfs/keys.py", "import uuid", "imports uuid"),
    (
        imports_of_udfs_are_pure,
        "udfs/bucket_state.py",
        "from urllib import request",
        "imports urllib.request",
    ),
    (
        imports_of_udfs_are_pure,
        "udfs/keys.py",
        "import pyarrow.parquet as pq",
        "imports pyarrow.parquet",
    ),
    (imports_of_udfs_are_pure, "udfs/keys.py", "open('/etc/passwd')", "uses open"),
    (
        imports_of_udfs_are_pure,
        "udfs/keys.py",
        "import numpy as np\nnp.random.normal()",
        "uses random",
    ),
    (
        internals_of_spark_have_one_place,
        "dpsql/streaming/rows.py",
        LATER.format("return frame._jdf"),
        "uses _jdf",
    ),
    (
        only_jobs_reads_argv_and_the_environment,
        "dpsql/lake/runs.py",
        "import os as o\no.environ['X']",
        "reads environ",
    ),
    (
        only_jobs_reads_argv_and_the_environment,
        "dpsql/lake/runs.py",
        "from os import getenv",
        "reads getenv",
    ),
    (
        only_jobs_reads_argv_and_the_environment,
        "dpsql/lake/runs.py",
        "from sys import argv as words",
        "reads argv",
    ),
    (
        only_jobs_reads_argv_and_the_environment,
        "udfs/keys.py",
        "import os\ngetattr(os, 'environ')",
        "reads environ",
    ),
    (
        lines_of_a_module_are_few,
        "tests/unit/test_long.py",
        "x = 1\n" * (MAX_LINES + 1),
        f"has {MAX_LINES + 1} lines",
    ),
    (
        lines_of_requirements_lock_pin_everything,
        "requirements.lock",
        "numpy==2.1 \\\n    --hash=sha256:aa\n",
        "flask-cors is not pinned",
    ),
    (PINNED, "requirements.lock", LOCK, "flask-cors has no hash"),
    (
        ci_runs_what_a_contributor_runs,
        ".ci/run",
        "make setup\nmake test\n",
        "runs ['make setup', 'make test']",
    ),
    (ci_runs_what_a_contributor_runs, ".ci/run", CI, "cannot be run"),
]
# What looks like a violation and is none.
ALLOWED = {
    "udfs/keys.py": "from __future__ import annotations\nimport numpy as np\nfrom scipy.special import ndtri\nfrom dpsql.udfs.noise import randomness\n",
    "udfs/bucket_state.py": "import uuid\nimport pyarrow.fs as pafs\nfrom urllib.parse import unquote\n",
    "dpsql/streaming/workers.py": "import pyspark\nfrom dpsql.local_settings import x\nfrom importlib.util import find_spec\n",
    "dpsql/streaming/internals.py": "def f(frame):\n    return frame._jdf\n",
    "dpsql/local/record_reader.py": "import duckdb\nfrom dpsql.streaming_names import x\n",
    "dpsql/jars.py": "import os\nos.environ\n",
    "dpsql/lake/runs.py": "from dpsql.errors import LakeError\n\ndef f(environ):\n    return environ\n",
    "jobs/cli.py": "import os, sys, click\nos.environ, sys.argv\n",
    "tests/unit/test_x.py": "x = 1\n" * MAX_LINES,
    "requirements.lock": "numpy==2.1 \\\n    --hash=sha256:aa\nflask-cors==5 \\\n    --hash=sha256:bb\n",
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_project_keeps_its_rules(rule: Callable[[Path], Violations]) -> None:
    assert rule(CHECKOUT) == []


@pytest.mark.parametrize(
    ("rule", "path", "text", "says"),
    PLANTED,
    ids=[f"{one[0].__name__}-{one[3]}" for one in PLANTED],
)
def test_a_planted_violation_is_found(
    tmp_path: Path, rule: Callable[[Path], Violations], path: str, text: str, says: str
) -> None:
    plant(tmp_path, {"pyproject.toml": PROJECT, ".ci/run": CI, path: text})
    assert f"{path} {says}" in rule(tmp_path) or says in rule(tmp_path)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_what_is_allowed_is_not_reported(
    tmp_path: Path, rule: Callable[[Path], Violations]
) -> None:
    plant(tmp_path, {"pyproject.toml": PROJECT, ".ci/run": CI, **ALLOWED})
    (tmp_path / ".ci" / "run").chmod(0o755)
    assert rule(tmp_path) == []


def test_every_rule_has_a_planted_violation() -> None:
    assert {rule for rule, *_ in PLANTED} == set(RULES)


JAVA = '#!/bin/sh\necho "Picked up JAVA_TOOL_OPTIONS: -Dx" >&2\necho \'openjdk version "{}" 2025-01-01\' >&2\n'
OLD_PYTHON = "#!/bin/sh\nexit 1\n"
WITHOUT_PIP = '#!/bin/sh\ncase "$2" in *ensurepip*) exit 1 ;; esac\n'
REAL = {"python3": "real"}


@pytest.mark.parametrize(
    ("tools", "environment", "says"),
    [
        ({"git": "", **REAL}, {}, "Java is missing: install a JRE 17 or 21"),
        ({"git": "", **REAL, "java": JAVA.format("11.0.2")}, {}, "is version 11.0.2"),
        ({"git": "", **REAL, "java": JAVA.format("1.8.0_312")}, {}, "is version 1.8.0_312"),
        ({"git": "", **REAL, "java": JAVA.format("25")}, {}, "is version 25"),
        ({"git": "", **REAL, "java": "#!/bin/sh\nexit 1\n"}, {}, "is version unknown"),
        (
            {"git": "", **REAL, "java": JAVA.format("17.0.1")},
            {"JAVA_HOME": "/no"},
            "JAVA_HOME is /no, which has no bin/java",
        ),
        ({"git": "", "java": JAVA.format("17.0.1")}, {}, "Python 3.11 or newer is missing"),
        (
            {"git": "", "java": JAVA.format("21"), "python3": OLD_PYTHON},
            {},
            "Python 3.11 or newer is missing",
        ),
        (
            {"git": "", "java": JAVA.format("21"), "python3": WITHOUT_PIP},
            {},
            "apt install python3-venv",
        ),
        ({"java": JAVA.format("21"), **REAL}, {}, "git is missing"),
    ],
)
def test_make_says_in_one_line_what_is_missing(
    tmp_path: Path, tools: dict[str, str], environment: dict[str, str], says: str
) -> None:
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
        done = subprocess.run(
            [folder / "make", target],
            cwd=tmp_path,
            env=clean,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2, done
        assert says in done.stderr
        assert len((done.stdout + done.stderr).splitlines()) == 1
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("folder", ["jobs", "udfs"])
def test_a_folder_is_imported_by_one_name(folder: str) -> None:
    """Catches: two classes of one name, one of `udfs` and one of `dpsql.udfs`."""
    code = f"import {folder}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert f"ImportError: the package is dpsql.{folder}: import that" in done.stderr
