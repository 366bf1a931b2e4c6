"""What a worker imports for a stage: the very function that Spark ships, unpickled and run in a process of its own. A worker knows rows,
not budgets: `udfs` and the scientific packages that Spark's own worker and `udfs` need."""

import sys
from pathlib import Path

import pytest

from benchmarks.worker_start import STAGES, in_a_worker
from dpsql.streaming.session import SHIPPED

MAY = {
    "charset_normalizer", "cryptography", "numpy", "pandas", "pyarrow", "pyspark", "scipy", "scipy.linalg", "scipy.special",
    "dpsql.udfs",
}  # fmt: skip
"""What a stage needs, and what these bring. Of scipy its parts count; names with an underscore are the insides of packages."""


def foreign(modules: list[str]) -> set[str]:
    """What a stage may not import: packages by name, of scipy its parts."""
    found = set()
    for module in modules:
        package, *parts = module.split(".")
        if package not in sys.stdlib_module_names and not package.startswith("_"):
            part = parts[0] if parts else ""
            named = (
                package in ("dpsql", "scipy")
                and part
                and not part.startswith("_")
                and part != "version"
            )
            found.add(f"{package}.{part}" if named else package)
    return found - MAY - {"dpsql", "scipy"}


@pytest.mark.parametrize("what", ["udfs", *STAGES])
def test_a_worker_imports_udfs_and_scientific_packages(what: str, tmp_path: Path) -> None:
    """Catches: a shipped function that is pickled by its name in `dpsql`, which would bring planner, accountant and ledger along."""
    found = in_a_worker(what, tmp_path)
    own = {"admission": "intake.contribution_bounding"}.get(what, "histogram.release")
    assert {"dpsql.udfs.bucket_state", f"dpsql.udfs.{own}"} <= set(found["modules"])
    assert foreign(found["modules"]) == set()
    assert what == "udfs" or found["rows"] == 1  # a report of the bucket
    assert what != "release" or list((tmp_path / "released").iterdir())


def test_what_is_foreign_is_found() -> None:
    assert foreign(
        ["dpsql.udfs.stage", "json", "scipy.special", "scipy.stats", "dpsql.errors"]
    ) == {"scipy.stats", "dpsql.errors"}


def test_workers_are_sent_udfs_alone() -> None:
    assert SHIPPED == "udfs"
