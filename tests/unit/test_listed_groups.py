"""Public groups are made once in a run's life: whatever became of their file, no other list is published in silence."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dpsql
from dpsql.errors import LakeError
from dpsql.lake.engine_file import Engine, Part, write_engine
from dpsql.mechanisms.public_groups import FILE, load
from dpsql.sources.config import Source, Sources
from dpsql.streaming import rows
from dpsql.udfs.bucket_state import DamagedState
from dpsql.udfs.keys import PublicGroups, encode
from dpsql.udfs.stage import OPERATORS, RELEASE
from tests.unit.test_checksums import silent

SQL = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 6, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 4,
    public_groups = (SELECT page FROM pages))
  page, COUNT(*) AS views FROM visits GROUP BY window(ts, '1 hour'), page
"""
NO_SESSION: Any = None
Groups = Callable[[Engine, str], PublicGroups | None]


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Groups:
    """The groups of a run whose public table has these pages now."""
    stream = Source(
        "visits",
        "parquet",
        str(tmp_path),
        (),
        None,
        event_time="ts",
        privacy_unit=("user_id",),
        start_us=0,
    )
    query = dpsql.compile(
        SQL, Sources((stream, Source("pages", "csv", str(tmp_path), static=True)))
    )

    def found(engine: Engine, pages: str) -> PublicGroups | None:
        monkeypatch.setattr(
            rows, "listed_keys", lambda session, plan: [encode([page.encode()]) for page in pages]
        )
        return rows.groups_of(NO_SESSION, query, engine, None, b"s" * 16)

    return found


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    made = Engine(tmp_path, (1, 1), {operator: Part() for operator in OPERATORS})
    write_engine(made, {})
    return made


def test_a_list_that_changes_changes_nothing(groups: Groups, engine: Engine) -> None:
    first = groups(engine, "abc")
    assert first is not None and len(first.keys) == 3
    assert groups(engine, "abcd") == first == load(engine.folder)


@pytest.mark.parametrize("restored", [False, True])
def test_a_lost_list_is_made_anew_only_before_anything_ran(
    groups: Groups, engine: Engine, restored: bool
) -> None:
    """Catches: other groups than those that are published, without a word; also after a restore, which forgets the queries."""
    groups(engine, "abc")
    (engine.folder / FILE).unlink()
    assert len(groups(engine, "abcd").keys) == 4
    if restored:
        engine = replace(engine, parts={**engine.parts, RELEASE: Part(2)})
        write_engine(engine, {})
    else:
        write_engine(engine, {"admission": "x"})
    (engine.folder / FILE).unlink()
    with pytest.raises(
        LakeError, match=r"public_groups.parquet is lost, but .* dpsql restore .* --new-run$"
    ):
        groups(engine, "abc")
    assert not (engine.folder / FILE).exists()


def test_a_damaged_list_is_refused_with_a_command(groups: Groups, engine: Engine) -> None:
    groups(engine, "abcdefghijk")
    assert silent(engine.folder / FILE, lambda: load(engine.folder)) == []
    content = (engine.folder / FILE).read_bytes()
    for cut in (0, 7, len(content) // 2, len(content) - 1):
        (engine.folder / FILE).write_bytes(content[:cut])
        with pytest.raises(DamagedState):
            load(engine.folder)
        with pytest.raises(
            LakeError, match=r"public_groups.parquet is damaged.* dpsql restore .* --new-run$"
        ):
            groups(engine, "abc")
