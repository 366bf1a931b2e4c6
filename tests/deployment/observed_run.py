"""One run as an operator starts it, with everything on that Spark can show: UI, event log, plans. What it shows goes to files.

python -m tests.deployment.observed_run FOLDER PORT QUERY SOURCES JARS LEVEL
"""

import os
import re
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

REST = (
    *(
        "jobs",
        "stages?details=true&withSummaries=true",
        "allexecutors",
        "environment",
        "storage/rdd",
    ),
    "sql?details=true&planDescription=true&length=10000",
)


class Watcher(threading.Thread):
    """Reads every page of the UI and of the REST interface, again and again, while Spark runs."""

    def __init__(self, base: str, out: Path) -> None:
        super().__init__(daemon=True)
        self.base = base
        self.out = out
        self.over = threading.Event()
        self.explained: list[str] = []
        self.queries: list[Any] = []

    def run(self) -> None:
        while not self.over.wait(2):
            for query in list(self.queries):
                try:
                    self.note(query._jsq.explainInternal(True))
                except Exception:
                    self.queries.remove(query)
            self.crawl()

    def crawl(self) -> None:
        applications = self.read("/api/v1/applications")
        if not (found := re.search(r'"id" : "([^"]+)"', applications)):
            return
        for path in REST:
            self.read(f"/api/v1/applications/{found[1]}/{path}")
        seen = {"/"}
        waiting = [
            "/jobs/",
            "/stages/",
            "/storage/",
            "/environment/",
            "/executors/",
            "/SQL/",
            "/StreamingQuery/",
        ]
        while waiting and len(seen) < 30 and not self.over.is_set():
            path = waiting.pop(0)
            seen.add(path)
            links = re.findall(
                r'href="(/(?:jobs|stages|SQL|StreamingQuery|storage)/[^"#]*)', self.read(path)
            )
            waiting += [
                link
                for link in dict.fromkeys(links)
                if link not in seen and not re.search("kill|[.]sort=", link)
            ]

    def read(self, path: str) -> str:
        try:
            with urllib.request.urlopen(self.base + path.replace("&amp;", "&"), timeout=20) as page:
                text = page.read().decode(errors="replace")
        except OSError:
            return ""
        self.note(f"=== {path}\n{text}")
        return str(text)

    def note(self, text: str) -> None:
        with self.out.open("a") as file:
            file.write(text + "\n")


PLANTED_SETTING = "planted-setting-9d04"


def main(folder: Path, port: str, query: Path, sources: Path, jars: str, level: str) -> None:
    from pyspark.sql.streaming import DataStreamWriter

    from dpsql.jobs.options import one_line_errors
    from dpsql.jobs.run_query import RunFlags, start

    os.umask(0o022)
    watcher = Watcher(f"http://127.0.0.1:{port}", folder / "shown.txt")
    begin = DataStreamWriter.start

    def started(writer: Any, *given: Any, **named: Any) -> Any:
        running = begin(writer, *given, **named)
        watcher.queries.append(running)
        return running

    DataStreamWriter.start = started  # type: ignore[method-assign]
    watcher.start()
    (folder / "events").mkdir(mode=0o700, exist_ok=True)
    properties = {
        **{
            "spark.ui.enabled": "true",
            "spark.ui.port": port,
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": str(folder / "events"),
            "spark.eventLog.compress": "false",  # in a compressed one a search finds nothing, whatever is there
            "spark.log.level": level,
            "spark.cleaner.referenceTracking": "false",  # blocks stay, so that a stranger who asks later is served, too
            "spark.hadoop.fs.s3a.secret.key": PLANTED_SETTING,
        },
        **{
            "spark.local.dir": str(folder / "local"),
            "spark.jars": jars,
            "spark.driver.memory": "1g",
            "spark.ui.liveUpdate.period": "0",
        },
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m",
    }
    given: dict[str, Any] = {
        "query_file": query,
        "sources_file": sources,
        "lake_folder": str(folder / "lake"),
        "name": "observed",
    }
    given |= {
        "secret_file": folder / "secret" / "secret",
        "until_caught_up": True,
        "until_us": 1_702_339_200_000_000,
        "buckets": 1,
    }
    given |= dict.fromkeys(
        ("accept_clock", "accept_folder", "untested_spark", "as_json"), False
    ) | dict.fromkeys(("interval_us", "log", "metrics"))
    flags = RunFlags(**given, retention_us=0)
    try:
        with one_line_errors(debug=False):
            start(flags, "local[1]", properties)
    finally:
        watcher.over.set()
        watcher.join(60)


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        sys.argv[2],
        Path(sys.argv[3]),
        Path(sys.argv[4]),
        sys.argv[5],
        sys.argv[6],
    )
