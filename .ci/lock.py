"""requirements.lock: every package with its hashes, from pyproject.toml.

python .ci/lock.py check     is it made from the pyproject.toml that is here? (exit code 1 if not; no network)
python .ci/lock.py make UV   make it anew with the given uv
"""

import hashlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
LOCK = CHECKOUT / "requirements.lock"


def head() -> str:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    asked = {
        key: project.get(key)
        for key in ("requires-python", "dependencies", "optional-dependencies")
    }
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    return f"# Made by `make lock` from pyproject.toml (dependencies {digest[:16]}). Do not edit.\n"


def main(what: str, uv: str = "") -> int:
    if what == "check":
        if LOCK.read_text().startswith(head()):
            return 0
        print("requirements.lock is not the one of pyproject.toml; run: make lock", file=sys.stderr)
        return 1
    asked = [
        "pip",
        "compile",
        "--quiet",
        "--universal",
        "--fork-strategy",
        "fewest",
        "--python-version",
        "3.11",
        "--generate-hashes",
    ]
    quiet = ["--no-header", "--no-annotate", "--extra", "dev", "pyproject.toml"]
    done = subprocess.run(
        [uv, *asked, *quiet], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return 1
    LOCK.write_text(head() + done.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
