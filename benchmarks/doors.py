"""Which modules one local query passes, and how many: compiled, released and drawn as a page. `python benchmarks/doors.py`"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import pandas as pd

import dpsql

CHECKOUT = Path(__file__).resolve().parents[1]
QUERY = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
  privacy_unit_column = user_id, epsilon = 2, delta = 1e-6, trigger_interval = "1 day",
  max_rows_contributed = 8, max_rows_per_group = 4)
  window, channel, COUNT(*) AS edits, VARIANCE(delta, contribution_bounds_per_row => (-100, 100)) AS spread
FROM records GROUP BY window(ts, '1 day'), channel
"""


def passed() -> list[str]:
    """Return the modules of the product in which a function was called."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            files.add(frame.f_code.co_filename)

    times = pd.date_range("2026-01-01", periods=400, freq="min")
    channels = ["one", "two"] * 200
    frame = pd.DataFrame({"ts": times, "channel": channels, "user_id": range(400), "delta": 1.0})
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder) / "secret"
        for profile in (None, note):  # the first time modules are imported
            sys.setprofile(profile)
            answer = dpsql.query(QUERY, frame, unit="user_id", time="ts", secret=secret)
            answer._repr_html_()
        sys.setprofile(None)
    places = [Path(file).resolve() for file in files]
    modules = {str(p.relative_to(CHECKOUT)) for p in places if p.is_relative_to(CHECKOUT)}
    return sorted(name for name in modules if name.startswith(("dpsql/", "udfs/", "jobs/")))


if __name__ == "__main__":
    modules = passed()
    print("\n".join(modules))
    print(f"{len(modules)} modules")
