"""Tables of docs/performance.md: each names a command, and one that starts Spark samples the Python workers."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.test_readme import CHECKOUT

PAGE = (CHECKOUT / "docs" / "performance.md").read_text(encoding="utf-8")
COMMAND = re.compile(r"python\s+(benchmarks/[\w/]+\.py)")
STARTS_SPARK = re.compile(r"pyspark|dpsql\.streaming|dpsql\.jobs\.cli|\bspark\.readStream")
SAMPLES = re.compile(r"ProcessTree\(|measure_command\(")
ON_PAPER = "on paper"


def sources(path: Path) -> str:
    """The code of a benchmark, and of the benchmarks that it imports or starts."""
    seen = dict[Path, str]()
    waiting = [path]
    while waiting:
        file = waiting.pop()
        if file in seen or not file.exists():
            continue
        seen[file] = file.read_text(encoding="utf-8")
        imported = re.findall(r"from benchmarks((?:\.\w+)+) import", seen[file])
        waiting += [CHECKOUT / f"benchmarks{name.replace('.', '/')}.py" for name in imported]
        started = re.findall(r'"benchmarks" / "(\w+\.py)"', seen[file])
        waiting += [CHECKOUT / "benchmarks" / name for name in started]
    seen.pop(CHECKOUT / "benchmarks" / "processes.py", None)
    return "\n".join(seen.values())


def problems(page: str) -> Iterator[str]:
    for section in re.split(r"(?m)^## ", page):
        title = section.partition("\n")[0]
        for table in re.finditer(r"(?m)^\|(?!-).*\n\|-", section):
            commands = COMMAND.findall(section[: table.start()])
            if not commands:
                if ON_PAPER not in title:
                    yield f"{title}: no command makes {table[0]}"
                continue
            code = sources(CHECKOUT / commands[-1])
            if STARTS_SPARK.search(code) and not SAMPLES.search(code):
                yield f"{title}: {commands[-1]} loses Python workers"


def test_tables_of_spark_runs_sample_workers() -> None:
    """Catches: CPU of a Spark run by what its parent waits for; a figure that nobody can make again."""
    assert list(problems(PAGE)) == []
    for command in ("throughput", "commands"):
        assert STARTS_SPARK.search(sources(CHECKOUT / f"benchmarks/{command}.py"))


def test_tables_without_workers_or_commands_are_found() -> None:
    table = "| a | b |\n|---|---|\n| 1 | 2 |\n"
    assert len(list(problems(f"## Speed\n\n{table}"))) == 1
    assert len(list(problems(f"## Speed\n\n`python benchmarks/catch_ups.py`\n\n{table}"))) == 1
    assert list(problems(f"## Speed\n\n`python benchmarks/growth.py`\n\n{table}")) == []
