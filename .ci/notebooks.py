"""Execute the notebooks in a folder of `dpsql init` and keep their outputs, without names of this machine.

python .ci/notebooks.py            all of them
python .ci/notebooks.py 3 5        those whose names begin so

The table that one of them reads is published once (by Spark); remove notebooks/lake to publish it again.
"""

import base64
import getpass
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import nbclient
import nbformat
from PIL import Image

CHECKOUT = Path(__file__).resolve().parent.parent
NOTEBOOKS = CHECKOUT / "notebooks"
TABLE = NOTEBOOKS / "lake" / "public" / "editors"
QUERY = """\
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-9, privacy_unit_column = user_id, max_groups_contributed = 2, trigger_interval = INTERVAL 1 HOUR)
  key AS wiki, COUNT(DISTINCT user_id) AS editors
FROM wiki GROUP BY window(ts, '1 day'), wiki
"""


def execute(path: Path) -> nbformat.NotebookNode:
    """Return a notebook with its outputs; it runs in its own folder."""
    notebook = nbformat.read(path, 4)
    resources = {"metadata": {"path": str(path.parent)}}
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources=resources
    ).execute()
    notebook.metadata = {
        "kernelspec": notebook.metadata.kernelspec,
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata = {}
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                data["image/png"] = small(data["image/png"])
    return notebook


def small(png: str) -> str:
    """Return a picture with few colours."""
    out = io.BytesIO()
    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    picture.quantize(128, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return base64.b64encode(out.getvalue()).decode() + "\n"


def without_names(text: str, folder: Path) -> str:
    """Return a notebook's text with neutral names of the host, the user and folders."""
    text = text.replace(str(folder), "~/private").replace(str(Path.home()), "~")
    text = re.sub(re.escape(tempfile.gettempdir()) + r"/[\w.-]+", "/tmp/folder", text)
    for name in {socket.gethostname(), getpass.getuser()} - {"root"}:
        text = re.sub(rf"\b{re.escape(name)}\b", "name", text)
    return text


def publish(folder: Path) -> None:
    """Publish the table that is read, with a secret that goes with the folder."""
    (folder / "editors.sql").write_text(QUERY)
    words = ["run", "editors.sql", "--lake", "lake", "--until-caught-up", "--until", "2015-09-13"]
    environment = os.environ | {"DPSQL_SECRET_FILE": str(folder / "keys" / "secret")}
    command = [sys.executable, "-m", "dpsql.jobs.cli", *words]
    subprocess.run(command, cwd=folder, env=environment, check=True)
    shutil.copytree(folder / "lake" / "public" / "editors", TABLE)
    for log in (TABLE / "_delta_log").glob("*.json"):
        log.write_text(without_names(log.read_text(), folder))


def main(*prefixes: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "private"
        command = [sys.executable, "-m", "dpsql.jobs.cli", "init", str(folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        if not TABLE.exists():
            publish(folder)
            shutil.copytree(TABLE.parents[1], folder / "notebooks" / "lake")
        for path in sorted(NOTEBOOKS.glob("*.ipynb")):
            if path.name.startswith(prefixes or ("",)):
                notebook = execute(folder / "notebooks" / path.name)
                text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
                path.write_text(without_names(text, folder))
                print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    os.environ["IPYTHONDIR"] = tempfile.mkdtemp()
    main(*sys.argv[1:])
