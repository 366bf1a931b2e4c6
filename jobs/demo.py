"""`make demo`: a private histogram of a real day of Wikipedia edits (conf/demo): explain, run on Spark, show, verify, and beside the true one.

Everything it writes is below `demo-out/`, a secret of its own included, and is made anew each time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
OUT = Path("demo-out")
QUERY = "conf/queries/demo.sql"


def main() -> int:
    """Run the demo; returns the exit code of the first command that fails, else 0."""
    os.chdir(CHECKOUT)
    shutil.rmtree(OUT, ignore_errors=True)
    print(Path(QUERY).read_text(), flush=True)
    lake = ["--lake", str(OUT / "lake")]
    commands = (
        ["explain", QUERY],
        ["run", QUERY, *lake, "--until-caught-up", "--until", "2015-09-13"],
        ["show", "demo", *lake],
        ["verify", "demo", *lake],
        ["try", QUERY, "--until", "2015-09-13", "--compare", "--limit", "8"],
    )
    environment = {**os.environ, "DPSQL_SECRET_FILE": str(OUT / "secret" / "secret")}
    for command in commands:
        print(f"\n$ dpsql {' '.join(command)}", flush=True)
        code = subprocess.run([sys.executable, "-m", "dpsql.jobs.cli", *command], env=environment, check=False).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
