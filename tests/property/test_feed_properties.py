"""Any change feed, broken as feeds break: the rows that count are those that the last image of each row describes, within the limits."""

import random
from pathlib import Path

import pytest

from tests.debezium import with_schema
from tests.feeds import SQL, Row, contents, feed_query, message, write_files
from tests.sweeps import sweep

WIDE = SQL.replace("max_rows_contributed = 2", "max_rows_contributed = 1000")
Change = tuple[int, Row | None, Row | None]
"""The place of a change, and its row before and after."""


def changes(chance: random.Random, size: int) -> list[Change]:
    """A history of a table: rows that begin, change what is read or not, pass to another owner, end and begin again."""
    table: dict[int, Row] = {}
    history: list[Change] = []
    for place in range(1, size + 1):
        key = chance.randrange(max(size // 6, 2))
        before = table.get(key)
        after = {
            "id": key,
            "owner": before["owner"] if before else f"o{chance.randrange(5)}",
            "cur": chance.choice("abc"),
            "bal": float(chance.randrange(3)),
        }
        if before is not None and chance.random() < 0.3:
            history.append((place, table.pop(key), None))
            continue
        if before is not None and chance.random() < 0.5:
            owner = chance.choice([before["owner"], before["owner"], f"o{chance.randrange(5)}"])
            after = {**before, "owner": owner, "bal": before["bal"] + 1}
        table[key] = after
        history.append((place, before, after))
    return history


def as_message(change: Change, chance: random.Random) -> Row:
    """A message, with a schema beside it or without."""
    place, before, after = change
    op = "d" if after is None else "u" if before else chance.choice(["c", "r"])
    written = message(op, before, after, chance.choice([place, str(place)]))
    return with_schema(written) if chance.random() < 0.2 else written


def broken(history: list[Change], chance: random.Random) -> list[list[Change]]:
    """The micro-batches in which a history comes: its front lost, stretches sent again, each stretch in any order within its micro-batch."""
    history = history[chance.choice([0, 0, len(history) // 3]) :]
    files: list[list[Change]] = []
    position = 0
    while position < len(history):
        end = min(position + chance.choice([1, 3, 10, 40]), len(history))
        files.append(history[position:end])
        if chance.random() < 0.5:
            again = chance.randrange(end)
            files.append(history[again : again + chance.choice([1, 10, 50])][: end - again])
        position = end
    return [chance.sample(file, len(file)) for file in files]


def table_of(files: list[list[Change]]) -> dict[str, int]:
    """How many rows of each key the last change of each row leaves."""
    newest = {
        (change[1] or change[2] or {})["id"]: change
        for change in sorted((change for file in files for change in file), key=lambda c: c[0])
    }
    keys = [after["cur"] for _, _, after in newest.values() if after is not None]
    return {key: keys.count(key) for key in sorted(set(keys))}


@pytest.mark.parametrize("number", range(sweep(5, 80)))
def test_rows_are_those_of_the_last_images(number: int, tmp_path: Path) -> None:
    """Catches: a row that vanishes with the messages before it, comes back with those that come again, or depends on cuts."""
    chance = random.Random(number)
    files = broken(changes(chance, chance.choice([20, 60, 120])), chance)
    write_files(tmp_path, [[as_message(change, chance) for change in file] for file in files])
    found, drops = contents(feed_query(tmp_path, WIDE))
    assert found == table_of(files)
    assert set(drops) <= {"replayed", "unknown_row"}
