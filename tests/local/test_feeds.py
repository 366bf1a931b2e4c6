"""Messages of Debezium that were lost, that come again, or that say a row in another way: which rows are there then."""

from pathlib import Path
from typing import Any

import pytest

from dpsql.errors import ConfigError
from dpsql.sources.config import load_sources
from tests.feeds import (
    SCHEMA,
    SQL,
    START,
    contents,
    feed_query,
    followed,
    message,
    row,
    write_files,
)


def test_updates_of_unread_columns_begin_lost_rows(tmp_path: Path) -> None:
    """Catches: an update of a column that the query does not read that is nothing, though the row was never seen, or was seen elsewhere."""
    write_files(
        tmp_path / "u", [[message("u", row(i), row(i, bal=9.0), 5000 + i) for i in range(300)]]
    )
    found, drops = contents(feed_query(tmp_path / "u"))
    assert (found, drops) == ({"a": 100, "b": 100, "c": 100}, {})
    moved = [row(i, cur="b") for i in range(0, 300, 3)]
    updates = [message("u", new, {**new, "bal": 9.0}, 5000 + new["id"]) for new in moved]
    snapshot = [message("r", None, row(i), 100) for i in range(300)]
    for number, files in enumerate(([snapshot + updates], [snapshot, updates])):
        write_files(tmp_path / f"moved{number}", files)
        assert contents(feed_query(tmp_path / f"moved{number}"))[0] == {"b": 200, "c": 100}


def test_rows_that_come_and_go_at_one_place_are_gone(tmp_path: Path) -> None:
    """Catches: a begin and an end of one row at one position, like a time in milliseconds, that leave the row."""
    write_files(
        tmp_path / "in",
        [[message("c", None, row(i), 5) for i in range(300)] + [message("d", row(0), None, 5)]],
    )
    assert contents(feed_query(tmp_path / "in"))[0] == {"a": 99, "b": 100, "c": 100}


def test_messages_that_come_again_change_nothing(tmp_path: Path) -> None:
    """Catches: a message that comes again after the end of its row and begins it, or uses up what its owner may add."""
    begun = [message("c", None, row(i), 10 + i) for i in range(300)]
    ended = [message("d", row(i), None, 2000 + i) for i in range(300)]
    write_files(tmp_path / "third", [begun, ended[::3], begun[::3]])
    found, drops = contents(feed_query(tmp_path / "third"))
    assert (found, drops) == ({"b": 100, "c": 100}, {"replayed": 100})
    later = [message("c", None, row(i, id=10_000 + i), 5000 + i) for i in range(300)]
    write_files(tmp_path / "whole", [begun, ended, begun, ended, later])
    found, drops = contents(feed_query(tmp_path / "whole"))
    assert (found, drops) == ({"a": 100, "b": 100, "c": 100}, {"replayed": 600})
    # Kept for no time at all they begin the row anew.
    brief = feed_query(tmp_path / "third", ended_rows_kept_us=0)
    assert contents(brief)[0] == {"a": 100, "b": 100, "c": 100}
    assert "until 7 days after its end" in feed_query(tmp_path / "third").explain()


def test_changes_that_a_position_rejects_are_counted(tmp_path: Path) -> None:
    """MySQL's position starts anew with each binlog. Catches: changes that are lost, and counted nowhere."""
    first = [
        message("c", None, row(i), None, file="bin.000001", pos=100_000 + 300 * i)
        for i in range(300)
    ]
    moved = [
        message("u", row(i), row(i, cur="c"), None, file="bin.000002", pos=4 + 300 * i)
        for i in range(0, 300, 3)
    ]
    ended = [message("d", row(i), None, None, pos=90_000 + i) for i in range(1, 300, 3)]
    write_files(tmp_path / "in", [first, moved + ended])
    query = feed_query(tmp_path / "in", sequence_by="source.pos")
    assert contents(query) == ({"a": 100, "b": 100, "c": 100}, {"replayed": 300})


def test_rows_of_one_transaction_share_a_place(tmp_path: Path) -> None:
    """Catches: rows that are taken for replays of each other, though each is another one at one position."""
    begun = [message("c", None, row(i), 7) for i in range(300)]
    moved = [message("u", row(i), row(i, cur="b"), 9) for i in range(0, 300, 3)]
    write_files(tmp_path / "in", [begun, moved])
    assert contents(feed_query(tmp_path / "in")) == ({"b": 200, "c": 100}, {})


def test_rows_with_another_primary_key_are_other_rows(tmp_path: Path) -> None:
    """Connectors end the row of the old key, with a tombstone behind it, and begin one. Catches: a row that is there twice, or gone."""
    begun = [message("c", None, row(i), 10 + i) for i in range(300)]
    renamed = [
        part
        for i in range(0, 300, 3)
        for part in (
            message("d", row(i), None, 1000 + i),
            "null",
            message("c", None, row(i, id=5000 + i, cur="b"), 1000 + i),
        )
    ]
    write_files(tmp_path / "in", [begun, renamed])
    assert contents(feed_query(tmp_path / "in")) == ({"b": 200, "c": 100}, {})


def test_columns_that_are_added_later_are_read(tmp_path: Path) -> None:
    """Catches: rows that are malformed from the change of the table on, or before it."""
    before = [message("c", None, row(i), 10 + i) for i in range(150)]
    after = [message("c", None, row(i, level=1.0, note="x"), 10 + i) for i in range(150, 300)]
    write_files(tmp_path / "in", [before, after])
    summed = SQL.replace("COUNT(*) AS n", "SUM(level, contribution_bounds_per_row => (0, 1)) AS n")
    assert contents(feed_query(tmp_path / "in")) == ({"a": 100, "b": 100, "c": 100}, {})
    sums, drops = contents(feed_query(tmp_path / "in", summed, schema=f"{SCHEMA}, level DOUBLE"))
    assert len(set(sums.values())) == 1 and drops == {}


def test_positions_are_texts_of_digits_too(tmp_path: Path) -> None:
    """Catches: Oracle's positions, or rows of a snapshot without one, that are malformed; such a row that takes the place of a newer one."""
    numbers = [message("r", None, row(i), None, scn=str(28_685_460 + i)) for i in range(300)]
    moved = [message("u", row(0), row(0, cur="b"), None, scn="28700000")]
    write_files(tmp_path / "texts", [numbers, moved])
    query = feed_query(tmp_path / "texts", sequence_by="source.scn")
    assert contents(query)[0] == {"a": 99, "b": 101, "c": 100}
    snapshot = [message("r", None, row(i), None) for i in range(300)]
    changes = [message("u", row(0), row(0, cur="b"), 7), message("d", row(3), None, 8)]
    for number, files in enumerate(
        ([snapshot, changes], [changes, snapshot], [changes + snapshot])
    ):
        write_files(tmp_path / f"snapshot{number}", files)
        found, _ = contents(feed_query(tmp_path / f"snapshot{number}"))
        assert found == {"a": 98, "b": 101, "c": 100}


def test_values_are_read_as_connectors_write_them(tmp_path: Path) -> None:
    """Catches: decimals that are 0 or malformed, times that are NULL, and the word of an unchanged value that is published."""
    snapshot = [message("r", None, row(i, bal="CWA=", at=START // 1000), 100) for i in range(300)]
    kept = [row(i, bal="CWA=", at=START // 1000) for i in range(0, 300, 3)]
    lacking = [{**old, "cur": "__debezium_unavailable_value", "bal": "AP8="} for old in kept]
    pairs = zip(kept, lacking, strict=True)
    write_files(
        tmp_path / "in", [snapshot, [message("u", *pair, 300 + i) for i, pair in enumerate(pairs)]]
    )
    written = {"schema": f"{SCHEMA}, at TIMESTAMP", "decimals": (("bal", 2),)}
    summed = SQL.replace("COUNT(*) AS n", "SUM(bal, contribution_bounds_per_row => (0, 25)) AS n")
    whole = SQL.replace("cur, COUNT", "date(at) AS day, COUNT").replace("BY cur", "BY date(at)")
    query = feed_query(tmp_path / "in", **written, time_unit="milliseconds")
    assert contents(query) == ({"a": 100, "b": 100, "c": 100}, {})
    by_day = feed_query(tmp_path / "in", whole, **written, time_unit="milliseconds")
    assert contents(by_day)[0] == {str(START // 86_400_000_000): 300}
    sums, _ = contents(feed_query(tmp_path / "in", summed, **written))
    assert sums["c"] / sums["a"] == pytest.approx(24 / 2.55, 1e-5)
    # Without an old row the value is unknown.
    alone = [message("u", None, new, 300 + i) for i, new in enumerate(lacking)]
    write_files(tmp_path / "in", [snapshot, alone])
    assert contents(query)[1] == {"malformed": 200}


def test_values_that_have_not_changed_are_not_in_the_state(tmp_path: Path) -> None:
    """A live row's text cannot stand for the word of an unchanged value: rows with other texts leave one state. A column that `schema` leaves
    out may have the word."""
    sql = SQL.replace("cur, COUNT", "left(cur, 1) AS k, COUNT").replace("BY cur", "BY left(cur, 1)")
    states = []
    for number, ending in enumerate("xy"):
        snapshot = [message("r", None, row(i, cur=f"a{ending}"), 100) for i in range(30)]
        write_files(tmp_path / f"{number}", [snapshot])
        states.append(followed(feed_query(tmp_path / f"{number}", sql))[0])
    assert states[0] == states[1]
    word = "__debezium_unavailable_value"
    update = [message("u", None, row(i, cur="b", note=word), 300 + i) for i in range(30)]
    write_files(tmp_path / "note", [snapshot, update])
    assert contents(feed_query(tmp_path / "note", sql)) == ({"b": 30}, {"malformed": 30})
    declared = feed_query(tmp_path / "note", sql, schema=f"{SCHEMA}, note STRING")
    assert contents(declared) == ({"a": 30}, {"malformed": 60})


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"time_unit": "seconds"}, "milliseconds or microseconds"),
        ({"decimals": {"bal": 19}}, "digits after the point"),
        ({"decimals": {"balance": 2}}, "declare `balance` as DOUBLE"),
        (
            {"change_feed": None, "unavailable_value": "?"},
            "is for sources with `change_feed: DEBEZIUM`",
        ),
        ({"primary_key": None, "ended_rows_kept": "1 day"}, "primary_key"),
    ],
)
def test_settings_of_messages_are_checked(setting: dict[str, Any], says: str) -> None:
    """Catches: a setting that is ignored."""
    block = {
        "format": "json", "path": "in", "schema": SCHEMA, "change_feed": "DEBEZIUM", "primary_key": "id",
        "sequence_by": "source.lsn", "privacy_unit": "owner", "start": "2024-03-01",
    }  # fmt: skip
    entry = {name: value for name, value in (block | setting).items() if value is not None}
    with pytest.raises(ConfigError, match=says):
        load_sources({"w": entry})
