"""Messages of Debezium, well formed and not, with the images that both engines must read in them."""

import json
from typing import Any

import pyarrow as pa

from dpsql.sources.change_feed import CHANGE, POSITION, TIME, FeedForm

DECLARED: dict[str, Any] = {"format": "json", "change_feed": FeedForm.DEBEZIUM, "event_time": None}
DECLARED |= {"primary_key": ("account",), "sequence_by": "source.lsn"}
SCHEMA = "account BIGINT, user_id STRING, branch STRING, balance DOUBLE, opened TIMESTAMP"
AT = 1_700_000_000_000
"""Of commits, in milliseconds."""

Row = dict[str, Any]
OLD: Row = {
    "account": 1,
    "user_id": "u",
    "branch": "b",
    "balance": 1.5,
    "opened": "2024-02-29T12:00:00Z",
}
NEW: Row = {**OLD, "branch": "c"}
OLD_IMAGE = (1, "u", "b", 1.5, 1_709_208_000_000_000)
NEW_IMAGE = (1, "u", "c", 1.5, 1_709_208_000_000_000)


def message(
    op: str, before: Row | None = None, after: Row | None = None, lsn: int = 7, at: int = AT
) -> dict[str, Any]:
    """As the connector of PostgreSQL writes it, without a schema beside it."""
    source = {
        "version": "2.5",
        "connector": "postgresql",
        "ts_ms": at,
        "snapshot": "false",
        "sequence": '["1","2"]',
        "lsn": lsn,
    }
    return {
        "before": before,
        "after": after,
        "source": source,
        "op": op,
        "ts_ms": at + 5,
        "transaction": None,
    }


def with_schema(given: dict[str, Any]) -> dict[str, Any]:
    """The same as JsonConverter writes it with `schemas.enable`."""
    fields = [
        {
            "type": "struct",
            "fields": [{"type": "int64", "optional": False, "field": "account"}],
            "optional": True,
            "field": "before",
        }
    ]
    return {
        "schema": {"type": "struct", "fields": fields, "optional": False, "doc": "a, {b}: 1.50"},
        "payload": given,
    }


def images(
    *listed: tuple[str, tuple[Any, ...]], lsn: int | None = 7, at: int | None = AT
) -> list[tuple[Any, ...]]:
    """Rows as a reader gives them."""
    return [(*row, change, lsn, None if at is None else at * 1000) for change, row in listed]


BEGUN = images(("insert", OLD_IMAGE))
ENDED = images(("delete", OLD_IMAGE))
BOTH = images(("update_preimage", OLD_IMAGE), ("update_postimage", NEW_IMAGE))
TEXT = json.dumps(message("c", None, OLD))
INNER = {**OLD, "branch": {"a": [1.50, 2], "b": None}}
WRITTEN = (
    ("1.50", "1.5"), ("1e3", "1000.0"), ("12345678.9", "1.23456789E7"), ("0.00012", "1.2E-4"), ("0.001", "0.001"), ("-0", "0"), ("-0.0", "-0.0"),
    ("1E22", "1.0E22"), ("123456789012345678901", "123456789012345678901"), ("true", "true"), ("[ ]", "[]"), ('{"a": "\\n/é"}', '{"a":"\\n/é"}'),
)  # fmt: skip
"""Values of a STRING column."""

HARD: tuple[tuple[str, list[tuple[Any, ...]], int], ...] = (
    (TEXT, BEGUN, 0),
    (json.dumps(message("r", None, OLD)), BEGUN, 0),
    (json.dumps(message("u", OLD, NEW)), BOTH, 0),
    (json.dumps(message("d", OLD)), ENDED, 0),
    (json.dumps(with_schema(message("u", OLD, NEW))), BOTH, 0),
    (json.dumps(message("u", OLD, NEW), indent=1).replace("\n", " "), BOTH, 0),
    ("  " + TEXT + " trailing", BEGUN, 0),
    # A row as a text, as the connector of MongoDB writes it.
    (json.dumps({**message("c"), "after": json.dumps(OLD)}), BEGUN, 0),
    (json.dumps(with_schema({**message("u", OLD), "after": json.dumps(NEW)})), BOTH, 0),
    # Heartbeats and messages of transactions are no images.
    (json.dumps({"ts_ms": AT}), [], 1),
    (json.dumps({"status": "BEGIN", "id": "7:1", "event_count": None, "data_collections": None}), [], 1),
    # What is not asked for may be anything.
    (json.dumps(message("c", {"account": "no number"}, OLD)), BEGUN, 0),
    (json.dumps({**message("c", None, OLD), "ts_ms": "soon", "more": [1]}), BEGUN, 0),
    # A column that is not there is NULL, as one that is null; one that is too much is not read.
    (json.dumps(message("c", None, {"account": 2, "user_id": None, "x": 1})), images(("insert", (2, None, None, None, None))), 0),
    # What is no text is written anew, as Spark does it.
    *((TEXT.replace('"branch": "b"', f'"branch": {given}'), images(("insert", (1, "u", said, 1.5, OLD_IMAGE[4]))), 0) for given, said in WRITTEN),
    (
        json.dumps(message("c", None, INNER)).replace("1.5, 2", "1.50, 2"),
        images(("insert", (1, "u", '{"a":[1.5,2],"b":null}', 1.5, OLD_IMAGE[4]))),
        0,
    ),
    (TEXT.replace('"user_id": "u"', '"user_id": "é\\n\\u00e9"'), images(("insert", (1, "é\né", "b", 1.5, OLD_IMAGE[4]))), 0),
    (TEXT.replace('"opened": "2024-02-29T12:00:00Z"', '"opened": 1'), images(("insert", (1, "u", "b", 1.5, 1_000_000))), 0),
    # The last of two fields of one name counts.
    (TEXT.replace('"op": "c"', '"op": "d", "op": "c"'), BEGUN, 0),
    (TEXT.replace('"branch": "b"', '"branch": "a", "branch": "b"'), BEGUN, 0),
    # Old rows that the table does not log (REPLICA IDENTITY DEFAULT): the new one counts, the old one cannot.
    (json.dumps(message("u", None, NEW)), images(("update_postimage", NEW_IMAGE)), 1),
    (json.dumps(message("d", None)), [], 1),
    (json.dumps(message("c", OLD, None)), [], 1),
    # Times that are none, or beyond the years: ends count at whatever time.
    (json.dumps(message("d", OLD, at=1 << 62)), images(("delete", OLD_IMAGE), at=None), 0),
    (json.dumps(message("d", OLD)).replace(f'"source": {{"version": "2.5", "connector": "postgresql", "ts_ms": {AT}', '"source": {"ts": 1'),
     images(("delete", OLD_IMAGE), at=None), 0),
    # Rows that do not fit the schema.
    (TEXT.replace('"account": 1', '"account": 1.5'), [], 1),
    (TEXT.replace('"opened": "2024-02-29T12:00:00Z"', '"opened": "12:00"'), [], 1),
    (json.dumps(message("u", {**OLD, "balance": "x"}, NEW)), images(("update_postimage", NEW_IMAGE)), 1),
    (json.dumps(message("u", OLD, [NEW])), images(("update_preimage", OLD_IMAGE)), 1),  # type: ignore[arg-type]
    # What is no message.
    (json.dumps(message("t")), [], 1),
    (json.dumps(message("m")), [], 1),
    (json.dumps({**message("c", None, OLD), "op": None}), [], 1),
    (json.dumps({**message("c", None, OLD), "op": ["c"]}), [], 1),
    (json.dumps({**message("c", None, OLD), "source": None}), [], 1),
    (json.dumps({**message("c", None, OLD), "source": {"ts_ms": AT}}), [], 1),
    # Whole numbers as texts, as Oracle's connector writes them.
    (json.dumps({**message("c", None, OLD), "source": {"ts_ms": str(AT), "lsn": "7"}}), BEGUN, 0),
    *((json.dumps({**message("c", None, OLD), "source": {"ts_ms": AT, "lsn": said}}), [], 1) for said in ("7 ", "7\n", "0x7", "", "7.0", "9" * 20)),
    (json.dumps({**message("c", None, OLD), "source": {"ts_ms": AT, "lsn": 7.0}}), [], 1),
    # Rows of a snapshot may be without a place.
    (json.dumps({**message("r", None, OLD), "source": {"ts_ms": AT, "lsn": None}}), images(("insert", OLD_IMAGE), lsn=None), 0),
    (json.dumps({**message("r", None, OLD), "source": {"ts_ms": AT}}), images(("insert", OLD_IMAGE), lsn=None), 0),
    (json.dumps({**message("r", None, OLD), "source": {"ts_ms": AT, "lsn": "x"}}), [], 1),
    (json.dumps({**message("r", None, OLD), "source": None}), [], 1),
    (json.dumps({**message("c", None, OLD), "source": {"ts_ms": "now", "lsn": 7}}), [], 1),
    (json.dumps({**message("c", None, OLD), "source": [7]}), [], 1),
    (json.dumps({"schema": {}, "payload": [message("c", None, OLD)]}), [], 1),
    (f"[{TEXT}]", [], 1),
    (TEXT[:-1], [], 1),
    ("{}", [], 1),
    ("null", [], 0),
    (" null ", [], 0),
    ("nulls", [], 1),
    ("17", [], 1),
    ('"text"', [], 1),
    ("}{", [], 1),
    # Blank ones are no records: a deleted row's tombstone.
    ("", [], 0),
    (" \t ", [], 0),
)  # fmt: skip


AS_WRITTEN: dict[str, Any] = {
    **DECLARED, "decimals": (("balance", 2),), "time_unit": "microseconds", "unavailable_value": "?"
}  # fmt: skip
MICROS = OLD_IMAGE[4]


def _written(
    said: Any, image: Any, branch: Any = "b", before: Row | None = None, opened: Any = MICROS
) -> tuple[str, list[tuple[Any, ...]], int]:
    """A new row with some values as connectors write them by default, and its image; None: it is malformed."""
    row = {**OLD, "balance": said, "branch": branch, "opened": opened}
    lost = image is None
    begun = [] if lost else images(("update_postimage", (1, "u", *image, MICROS)))
    ended = [] if before is None else images(("update_preimage", (1, *before.values())))
    text = json.dumps(
        message("u", before and {**OLD, **before, "balance": "lg==", "opened": 0}, row)
    )
    return text, [*ended, *begun], int(lost) + (before is None)


def _end(branch: Any) -> Row:
    return {"user_id": "u", "branch": branch, "balance": -1.06, "opened": 0}


HARD_VALUES: tuple[tuple[str, list[tuple[Any, ...]], int], ...] = (
    # Decimals: bytes of two's complement, as many as are needed or more.
    _written("CWA=", ("b", 24.0)),
    _written("AA==", ("b", 0.0)),
    _written("/w==", ("b", -0.01)),
    _written("AP8=", ("b", 2.55)),
    _written("f/////////8=", ("b", 92233720368547758.07)),
    _written("gAAAAAAAAAA=", ("b", -92233720368547758.08)),
    _written("AAAAAAAAAAAA", None),
    *(_written(said, None) for said in ("", "CWA", "CWB=", "C W=", "CWA=\n", "24.0", 24.0, "\u00e9\u00e9==")),
    _written(None, ("b", None)),
    # Times as numbers, and as texts as for columns with a zone.
    _written("CWA=", ("b", 24.0), opened=OLD["opened"]),
    _written("CWA=", None, opened="12:00"),
    # A value that has not changed is that of the old row.
    _written("CWA=", None, branch="?"),
    _written("CWA=", ("x", 24.0), branch="?", before=_end("x")),
    _written("CWA=", None, branch="?", before=_end(None)),
    _written("CWA=", ("??", 24.0), branch="??"),
)  # fmt: skip


def of_changes(changes: pa.Table) -> list[str]:
    """The messages of a feed as Delta has it: a change of a row is one of them."""
    at = changes[TIME].cast(pa.int64()).to_pylist()
    rows = changes.drop_columns([CHANGE, POSITION, TIME]).to_pylist()
    found: dict[tuple[int, int], dict[str, tuple[Row, int]]] = {}
    for row, change, version, us in zip(
        rows, changes[CHANGE].to_pylist(), changes[POSITION].to_pylist(), at, strict=True
    ):
        found.setdefault((version, row["account"]), {})[change] = (row, us // 1000)
    said = []
    for number, (_, change) in enumerate(sorted(found.items(), key=lambda item: item[0])):
        before = change.get("update_preimage", change.get("delete", (None, 0)))[0]
        after, ms = change.get("update_postimage", change.get("insert", (None, 0)))
        op = "d" if after is None else "u" if before else "c"
        said.append(
            json.dumps(message(op, before, after, number, ms or next(iter(change.values()))[1]))
        )
    return said
