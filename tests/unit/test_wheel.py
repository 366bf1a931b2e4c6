"""The wheel: everything that needs no jar works from it, in any folder; and the shell completes commands."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for room in ("dpsql", "jobs", "udfs"):
        shutil.copytree(CHECKOUT / room, source / room, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(CHECKOUT / "conf", source / "conf")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, source)
    words = [
        "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out),
        ".",
    ]  # fmt: skip
    subprocess.run([sys.executable, *words], cwd=source, check=True, capture_output=True)
    with zipfile.ZipFile(next(out.glob("*.whl"))) as wheel:
        wheel.extractall(out / "site")
    return out / "site"


def dp(installed: Path, folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    where = os.environ | {"PYTHONPATH": str(installed)} | environment
    code = "import sys; sys.argv[0] = 'dpsql'; from dpsql.jobs.cli import main; main(prog_name='dpsql')"
    return subprocess.run([sys.executable, "-P", "-c", code, *words], cwd=folder, env=where, capture_output=True, text=True, check=False)


def test_every_module_and_the_types_are_in_it(installed: Path) -> None:
    """Catches: a new package that pyproject.toml does not list."""
    expected = {path.relative_to(CHECKOUT).as_posix() for room in ("dpsql", "jobs", "udfs") for path in (CHECKOUT / room).rglob("*.py")}
    expected = {path if path.startswith("dpsql/") else f"dpsql/{path}" for path in expected}
    assert {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")} == {"dpsql"}
    assert {path.relative_to(installed).as_posix() for path in installed.rglob("*.py")} == expected
    assert (installed / "dpsql" / "py.typed").exists()
    conf = {path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / "conf").rglob("*") if path.is_file()}
    conf = {path for path in conf if path != "conf/spark-defaults.conf" and not path.startswith("conf/live/")}  # that is docker-compose's
    assert {
        path.relative_to(installed / "dpsql").as_posix() for path in (installed / "dpsql" / "conf").rglob("*") if path.is_file()
    } == conf
    assert {path.name for path in (installed / "dpsql" / "view").iterdir() if path.suffix != ".py"} == {"page.css", "page.html", "page.js"}


def test_commands_run_from_any_folder(installed: Path, tmp_path: Path) -> None:
    assert "dpsql explain conf/queries/demo.sql" in dp(installed, tmp_path, "init").stdout
    again = dp(installed, tmp_path, "init")
    assert (again.returncode, again.stderr) == (2, "conf is there already: give another folder, like `dpsql init private`\n")
    flags = ("conf/queries/demo.sql",)
    assert "What is promised" in dp(installed, tmp_path, "explain", *flags).stdout
    tried = dp(installed, tmp_path, "try", *flags, "--until", "2015-09-13", DPSQL_SECRET_FILE=str(tmp_path / "keys" / "secret"))
    assert "#en.wikipedia" in tried.stdout, tried.stderr


def test_the_shell_completes_commands(installed: Path, tmp_path: Path) -> None:
    asked = {"_DPSQL_COMPLETE": "bash_complete", "COMP_WORDS": "dpsql tu", "COMP_CWORD": "1"}
    assert dp(installed, tmp_path, **asked).stdout.split() == ["plain,tune"]
    assert "complete" in dp(installed, tmp_path, _DPSQL_COMPLETE="zsh_source").stdout
