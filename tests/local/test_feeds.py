"""Messages of Debezium that were lost, that come again, or that say a row in another way: which rows are there then."""

from pathlib import Path

from tests.feeds import contents, feed_query, message, row, write_files


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
