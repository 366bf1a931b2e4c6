"""What IPython shows of us."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

MISTAKE = """
import pandas as pd
import dpsql
dpsql.query("SELECT k FROM t", pd.DataFrame({"u": [1], "k": ["a"]}), unit="u", secret="secret")
"""


def test_a_mistake_shows_its_message_alone(tmp_path: Path) -> None:
    """Catches: sixty lines of our code above the one that helps."""
    shell = [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", "-c", MISTAKE]
    home = os.environ | {"IPYTHONDIR": str(tmp_path)}
    done = subprocess.run(
        shell, check=False, cwd=tmp_path, env=home, capture_output=True, text=True
    )
    assert done.stdout.startswith("QueryError: "), done
    assert "Traceback" not in done.stdout and ".py" not in done.stdout
