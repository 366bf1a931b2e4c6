"""One small stream and one query over it, as files that a user would write."""

import json
from pathlib import Path
from typing import Any

DAY = 86_400
START = 19_700 * DAY
UNTIL = "2023-12-12"
SCHEMA = "user_id STRING, page STRING, ts TIMESTAMP, seconds DOUBLE"
SQL = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
    epsilon = 20, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 4, trigger_interval = INTERVAL 12 HOURS)
  page, COUNT(*) AS views, SUM(seconds, contribution_bounds_per_row => (0, 60)) AS total
FROM visits
GROUP BY window(ts, '1 day'), page
"""
HEAD = "    event_time: ts\n    privacy_unit: user_id\n    max_users: 1000\n    max_keys: 1000\n"


def visits(users: int = 120, pages: int = 3, days: int = 1) -> list[dict[str, Any]]:
    """Every user visits every page once a day, in order of time, no two in the same second."""
    slots = [
        (day, user, page) for day in range(days) for user in range(users) for page in range(pages)
    ]
    rows = []
    for day, user, page in slots:
        second = START + day * DAY + (user * pages + page) * 100
        clock = second - START - day * DAY
        time = f"2023-12-{9 + day:02d}T{clock // 3600:02d}:{clock // 60 % 60:02d}:{clock % 60:02d}Z"
        rows.append({"user_id": f"u{user}", "page": f"p{page}", "ts": time, "seconds": float(page)})
    return rows


def json_lines(rows: list[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(row).encode() for row in rows]


def write_query(folder: Path, source: str) -> tuple[Path, Path]:
    """The query's file and a sources.yaml that declares `visits` so (lines below its name, indented by four)."""
    query = folder / "visits.sql"
    sources = folder / "sources.yaml"
    query.write_text(SQL)
    sources.write_text(f"sources:\n  visits:\n{source}{HEAD}")
    return query, sources


def write_files(folder: Path, lines: list[bytes], parts: int = 1) -> str:
    """JSON files in a folder; returns the declaration of their source."""
    folder.mkdir(parents=True, exist_ok=True)
    size = -(-len(lines) // parts)
    for part in range(parts):
        (folder / f"part-{part}.json").write_bytes(
            b"".join(line + b"\n" for line in lines[part * size : (part + 1) * size])
        )
    return f"    format: json\n    path: {folder}\n    options: {{maxFilesPerTrigger: 1}}\n    schema: {SCHEMA}\n"
