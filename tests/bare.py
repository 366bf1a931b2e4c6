"""An environment that has the wheel and what the wheel requires, without extras and without what tests need."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement


def bare_environment(folder: Path, wheel: Path) -> Path:
    """Make a virtual environment of the wheel alone; its packages are links to those of this environment, so nothing is fetched.

    Returns:
        Its interpreter. `dpsql` is beside it.
    """
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    site = (
        folder
        / "lib"
        / f"python{sys.version_info.major}.{sys.version_info.minor}"
        / "site-packages"
    )
    for package in required("dpsql"):
        for name in _top_level(package):
            (site / name).symlink_to(package.locate_file(name))
    install = ["install", "--quiet", "--no-deps", "--no-index", "--no-compile", str(wheel)]
    pip(python, *install)
    pip(python, "check")
    return python


def pip(python: Path, *words: str) -> None:
    """Run this environment's pip on another one."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        str(python),
        *words,
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)


def required(name: str) -> Iterable[Distribution]:
    """Everything that a package without extras requires, itself left out."""
    names = [name]
    packages = dict[str, Distribution]()
    while names:
        package = distribution(names.pop())
        for text in package.requires or ():
            requirement = Requirement(text)
            is_needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if is_needed and requirement.name not in packages:
                packages[requirement.name] = distribution(requirement.name)
                names.append(requirement.name)
    return packages.values()


def _top_level(package: Distribution) -> set[str]:
    parts = {path.parts[0] for path in package.files or ()}
    return {
        part
        for part in parts
        if part not in (os.pardir, "__pycache__") and not part.endswith(".pth")
    }
