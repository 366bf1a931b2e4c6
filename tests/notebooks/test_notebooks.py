"""Notebooks run from top to bottom in a folder that `dpsql init` of the wheel makes, and keep what they show without names of a machine."""

import ast
import json
import os
import re
import socket
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

import dpsql
from tests.sweeps import some
from tests.unit.test_wheel import dp, installed, wheel

__all__ = ["installed", "wheel"]

CHECKOUT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((CHECKOUT / "notebooks").glob("*.ipynb"))
PUBLIC = {"dpsql", "duckdb", "matplotlib.pyplot", "numpy", "pandas", "pathlib", "statistics", "tempfile"}
TRUTH = re.compile(r"truth|best|limit|names")
"""Values of the public data, or what the theory says, in an assertion."""
KILOBYTES = 600


def code(path: Path) -> list[Any]:
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]


def test_a_newcomer_finds_six_notebooks() -> None:
    """Catches: one that a change of the set has left behind; pictures that make the wheel large."""
    assert [path.stem[:1] for path in NOTEBOOKS] == [*"123456"]
    assert sum(path.stat().st_size for path in NOTEBOOKS) < KILOBYTES * 1024


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_kept_without_names(path: Path) -> None:
    """Catches: a notebook that was not run whole, an error or a warning in it, a name of whoever ran it."""
    cells = code(path)
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    pictures = [output["data"].pop("image/png") for output in outputs if "image/png" in output.get("data", {})]
    assert pictures and all(len(picture) > 5_000 for picture in pictures)
    logs = (CHECKOUT / "notebooks" / "lake").rglob("*.json")
    text = json.dumps(outputs) + "".join(log.read_text() for log in logs)
    names = [str(Path.home()), "/home/", "/root", "/tmp/", socket.gethostname()]
    assert [name for name in names if name in text] == []


def test_the_table_that_is_read_is_one_of_this_version() -> None:
    """Catches: a table that an earlier commit has published, which `dpsql init` copies and no reader takes."""
    frame = dpsql.latest(str(CHECKOUT / "notebooks" / "lake"), "editors")
    assert len(frame) > 15 and frame["editors_stderr"].between(5, 50).all()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_import_what_everybody_has(path: Path) -> None:
    """Catches: a module inside dpsql, which another release may not have; a shown number that nothing holds beside the truth."""
    trees = [ast.parse(cell.source) for cell in code(path)]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    modules = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    modules |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert modules <= PUBLIC
    assertions = [ast.unparse(node) for node in nodes if isinstance(node, ast.Assert)]
    assert [text for text in assertions if TRUTH.search(text) or "is_within" in text]


def test_a_snapshot_is_not_added_up() -> None:
    """Catches: the last rows of all, or their sum, as the first number of a notebook."""
    for path in NOTEBOOKS:
        assert "run_local" not in "".join(cell.source for cell in code(path))


@pytest.fixture(scope="module")
def private(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """An empty folder, and what `dpsql init` of the wheel makes of it."""
    folder = tmp_path_factory.mktemp("private")
    done = dp(installed, folder, "init")
    assert done.returncode == 0 and "notebooks about that day" in done.stdout, done.stderr
    return folder


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")  # of the kernel's client, not of this code
@pytest.mark.parametrize("name", some([path.name for path in NOTEBOOKS], 4))
def test_a_notebook_runs_from_the_wheel(
    name: str, private: Path, installed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path  # noqa: F811
) -> None:
    """Catches: a notebook that needs a checkout."""
    for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    monkeypatch.setenv("PYTHONPATH", str(installed))
    path = private / "notebooks" / name
    notebook = nbformat.read(path, 4)
    notebook.cells.append(nbformat.v4.new_code_cell("print(dpsql.__file__)"))
    client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}})
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = "".join(output.get("text", "") for output in notebook.cells[-1]["outputs"])  # a kernel may send it in pieces
    assert shown.startswith(str(installed) + os.sep)
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert len(os.listdir(private)) == 2
