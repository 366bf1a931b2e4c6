"""Every notebook runs from top to bottom as it is in the repository, and its charts are real pictures."""

import base64
import os
import re
from pathlib import Path

import nbclient
import nbformat
import pytest

from tests.sweeps import some

CHECKOUT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((CHECKOUT / "notebooks").glob("*.ipynb"))
QUICKSTART = CHECKOUT / "notebooks/quickstart.ipynb"
PICTURES = {"accuracy": 5, "guarantee": 1, "quickstart": 2, "sliding_windows": 1, "state_and_ledger": 1}


@pytest.fixture(autouse=True)
def _kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The kernel's own files go into the test's folder, and it finds this checkout."""
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")]))


def test_there_is_one_test_per_notebook() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(PICTURES)


def test_the_first_pictures_are_of_what_bounds_leave_whole() -> None:
    """Catches: characters, of which bounds take four fifths, and edits without the robots that make most of them."""
    text = (CHECKOUT / "notebooks/quickstart.ipynb").read_text()
    assert set(re.findall(r'charts\.\w+\(histogram, \\"(\w+)\\"', text)) == {"editors"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")  # of the kernel's client, not of this code
@pytest.mark.parametrize("path", some(NOTEBOOKS, 5, QUICKSTART), ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path) -> None:
    notebook = nbformat.read(path, 4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are noise of one run: clear them before a commit"
    client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}})
    client.execute()
    shown = [output["data"] for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    pictures = [base64.b64decode(data["image/png"]) for data in shown if "image/png" in data]
    assert len(pictures) == PICTURES[path.stem]
    assert all(picture.startswith(b"\x89PNG") and len(picture) > 10_000 for picture in pictures)
