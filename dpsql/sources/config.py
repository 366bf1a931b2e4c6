"""Sources: what may be queried, who its people are and what may be spent on them (`sources.yaml`).

The file is read strictly: an unknown key, a wrong type or a missing setting is a ConfigError that names the line and ends with the
path inside the file, like `at sources.visits.max_users`. Relative paths are relative to the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from dpsql.parsed_query import PrivacyLevel
from dpsql.sources.caps import NO_CAP, Cap, read_caps
from dpsql.sources.change_feed import TIME, FeedForm, column_rules, feed_rules
from dpsql.sources.domains import Domain, read_domains
from dpsql.sources.places import overlap, places
from dpsql.sources.reader_options import CATALOG, refused_option
from dpsql.sources.yaml_file import Block, YamlDocument, read_yaml
from dpsql.times import EPOCH, parse_duration

DEFAULT_MAX_USERS = 10_000_000
DEFAULT_MAX_KEYS = 10_000_000
FORMATS_WITHOUT_SCHEMA_OF_THEIR_OWN = ("csv", "json", "kafka")
VALUE_FORMATS = ("json", "avro")
CUTS_BY_RECORDS = r"(max|min)(bytes|offsets|records|rows|messages|events)per(trigger|(micro)?batch)"
"""Names of such options of any source, in lower case and letters only."""


@dataclass(frozen=True)
class Source:
    """One stream, or one public static table, that queries may read.

    Args:
        name: lower case, as in FROM.
        format: a Spark data source (`parquet`, `delta`, `kafka`, ...).
        path: where it is; absolute or a URI. None when `options` say it.
        table: name in Spark's catalog, like `shop.visits`, where `format` is `table`.
        options: reader options, sorted by name.
        schema: column names and types as Spark DDL, where the data does not carry them.
        event_time: the column that windows are cut by (lower case); None for a static table.
        privacy_unit: the columns that name a user (lower case); empty for a static table, and where only queries that protect rows read a stream.
        static: a public table, the same for everybody.
        max_users, max_keys: public upper bounds, charged to delta for hash collisions.
        max_malformed: records per micro-batch above which the operator is warned.
        cap: what all runs may spend together on one unit; None is no cap.
        event_cap: what they may spend on one row, at privacy level EVENT.
        uncapped: `cap: none` says on purpose that there is no cap.
        ledger: sources with the same people share one ledger name.
        apart_from: ledgers that have budgets of their own on purpose, though their sources read the same data.
        public: the records are no secret, so exact values may be shown.
        value_format: how a Kafka value is written.
        value_schema: the Avro schema that values were written with, as JSON.
        start_us: when the stream was declared to start, microseconds since 1970 UTC; public groups are released from there on,
            and windows that prove keys together begin there.
        change_feed: how the changes of a table are written that the stream consists of; None: its records stay. A change counts from the time
            of its commit on.
        primary_key: of that table, the columns that name a row of one privacy unit (lower case); empty: equal rows of a unit are copies.
        sequence_by: the number in a message that says which of two changes of a row is later.
        domains: all values that keys of these names (lower case) can have, for GROUP BY CUBE.
        max_ahead_us: records further ahead of the clock are dropped; None: the query's trigger interval.
    """

    name: str
    format: str
    path: str | None = None
    options: tuple[tuple[str, str], ...] = ()
    schema: str | None = None
    event_time: str | None = None
    privacy_unit: tuple[str, ...] = ()
    static: bool = False
    max_users: int = DEFAULT_MAX_USERS
    max_keys: int = DEFAULT_MAX_KEYS
    max_malformed: int = 0
    cap: Cap | None = None
    ledger: str = ""
    value_format: str | None = None
    value_schema: str | None = None
    start_us: int | None = None
    table: str | None = None
    uncapped: bool = False
    apart_from: tuple[str, ...] = ()
    public: bool = False
    event_cap: Cap | None = None
    change_feed: FeedForm | None = None
    primary_key: tuple[str, ...] = ()
    sequence_by: str | None = None
    domains: tuple[tuple[str, Domain], ...] = ()
    max_ahead_us: int | None = None

    def __post_init__(self) -> None:
        if self.change_feed and not self.event_time:
            object.__setattr__(self, "event_time", TIME)
        unit: Any = self.privacy_unit  # one name is what people write
        if isinstance(unit, str):
            object.__setattr__(self, "privacy_unit", (unit,))
        if not self.ledger:
            object.__setattr__(self, "ledger", self.name)

    def cap_of(self, level: PrivacyLevel) -> Cap | None:
        """Return the cap of one level."""
        return self.event_cap if level is PrivacyLevel.EVENT else self.cap


SOURCE_KEYS = tuple(
    each.name.removesuffix("_us")
    for each in fields(Source)
    if each.name not in ("name", "uncapped", "event_cap")
)
"""What the block of a source in sources.yaml may have: `cap` tells three of the fields."""


@dataclass(frozen=True)
class Sources(Mapping[str, Source]):
    """The sources of one file by name; `path` is the file (None when made in code)."""

    entries: tuple[Source, ...]
    path: Path | None = field(default=None, compare=False)

    def __getitem__(self, name: str) -> Source:
        for source in self.entries:
            if source.name == name:
                return source
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (source.name for source in self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def load_sources(path: str | Path | Mapping[str, Any]) -> Sources:
    """Read `sources.yaml`, or what would stand in it: `{"visits": {"format": "parquet", "path": "data/visits", ...}}`.

    Raises:
        ConfigError: the file is missing, is not UTF-8 or not YAML, or something in it is not accepted.
    """
    written = YamlDocument(None, {"sources": dict(path)}, {}) if isinstance(path, Mapping) else None
    document = written or read_yaml(Path(path))  # type: ignore[arg-type]
    if "sources" not in document.block((), ("sources",)).given:
        raise document.error("no sources: write `sources:` and below it one block per source", ())
    named = document.block(("sources",)).given
    if not named:
        raise document.error("no source is declared", ("sources",))
    sources = [_source(document, name) for name in named]
    _check_places(sources, document)
    return Sources(_with_shared_caps(sources, document), document.path)


def _check_places(sources: list[Source], document: YamlDocument) -> None:
    """Refuse streams that read the same records on two ledgers, one with a cap: it would not see what the other spends."""
    streams = [(source, places(source)) for source in sources if not source.static]
    for number, (source, reads) in enumerate(streams):
        for other, other_reads in streams[:number]:
            caps = source.cap, source.event_cap, other.cap, other.event_cap
            is_apart = other.ledger in source.apart_from or source.ledger in other.apart_from
            if (
                source.ledger == other.ledger
                or is_apart
                or not any(caps)
                or not overlap(reads, other_reads)
            ):
                continue
            raise document.error(
                f"source {source.name!r} reads what {other.name!r} reads, but they spend on two ledgers, and a cap of one does not see the "
                f"other. Write `ledger: {other.ledger}` here, to share ledger and cap; or, if their budgets are to be apart on purpose, "
                f"`apart_from: {other.ledger}`",
                ("sources", source.name),
            )


def _with_shared_caps(sources: list[Source], document: YamlDocument) -> tuple[Source, ...]:
    """A cap is the ledger's: one source declares it for all that share the ledger."""
    caps: dict[str, Source] = {}
    for source in sources:
        declared = source.cap or source.event_cap or source.uncapped
        first = caps.setdefault(source.ledger, source) if declared else source
        if (first.cap, first.event_cap) != (source.cap, source.event_cap):
            said = f"source {first.name!r} declares another cap for ledger {source.ledger!r}; sources that share a ledger share its cap"
            raise document.error(said, ("sources", source.name, "cap"))
    return tuple(
        replace(
            source,
            cap=caps[source.ledger].cap,
            event_cap=caps[source.ledger].event_cap,
            uncapped=caps[source.ledger].uncapped,
        )
        if source.ledger in caps and not source.static
        else source
        for source in sources
    )


def cut_by_records(source: Source) -> str | None:
    """Return what is wrong with an option that ends micro-batches by a count to which one user's records add; None: there is none.

    Such a cut moves others' records to other micro-batches, so that whose records count would depend on that user (assumption A2).
    """
    for name, _ in () if source.static else source.options:
        if re.search(CUTS_BY_RECORDS, re.sub("[^a-z]", "", name.lower())):
            instead = "leave it away; cut files by `maxFilesPerTrigger`"
            if source.format == "kafka":
                instead = "leave it away; a large backlog is read in one micro-batch: start the run with more --buckets (docs/deployment.md)"
            return f"`{name}` is refused: one user's records would decide in which micro-batch others' are; {instead}"
    return None


def _source(document: YamlDocument, name: str) -> Source:
    at = ("sources", name)
    if not re.fullmatch(r"[a-z_][a-z0-9_]*", name):
        raise document.error(
            f"source name {name!r} may have lower-case letters, digits and _ only", at
        )
    read = document.block(at, SOURCE_KEYS)
    static = read.boolean("static")
    caps = (
        read_caps(document, (*at, "cap"), parse_duration)
        if read.given.get("cap", NO_CAP) != NO_CAP
        else {}
    )
    source = Source(
        name=name,
        format=read.text("format", required="like `format: parquet`").lower(),
        path=_absolute(read.text("path"), document.path),
        options=_options(document, (*at, "options")) if "options" in read.given else (),
        schema=read.text("schema") or None,
        event_time=read.text("event_time").lower() or None,
        privacy_unit=_columns(read, "privacy_unit"),
        static=static,
        max_users=read.whole("max_users", DEFAULT_MAX_USERS, least=1),
        max_keys=read.whole("max_keys", DEFAULT_MAX_KEYS, least=1),
        max_malformed=read.whole("max_malformed", 0, least=0),
        cap=caps.get(PrivacyLevel.USER),
        event_cap=caps.get(PrivacyLevel.EVENT),
        ledger=read.text("ledger") or name,
        value_format=read.text("value_format").lower() or None,
        value_schema=_value_schema(read, document, at),
        start_us=_start(read),
        table=read.text("table") or None,
        uncapped=read.given.get("cap") == NO_CAP,
        apart_from=_apart_from(read),
        public=read.boolean("public"),
        change_feed=_change_feed(read),
        primary_key=_columns(read, "primary_key"),
        sequence_by=read.text("sequence_by") or None,
        domains=read_domains(document, (*at, "domains")) if "domains" in read.given else (),
        max_ahead_us=read.duration("max_ahead"),
    )
    _check_together(source, document, at)
    return source


def _check_together(source: Source, document: YamlDocument, at: tuple[str, ...]) -> None:
    """Settings that depend on one another."""
    wants_schema = (
        source.static and source.format in FORMATS_WITHOUT_SCHEMA_OF_THEIR_OWN and not source.schema
    )
    kafka = source.format == "kafka"
    named = source.format == CATALOG
    part = r"[A-Za-z_][A-Za-z0-9_]*"
    avro = source.value_format == "avro"
    cut = cut_by_records(source)
    rules: tuple[tuple[bool, str, str], ...] = (
        (cut is not None, "options", str(cut)),
        (
            named and source.table is None,
            "",
            "format table needs `table`: its name in the catalog, like `table: shop.visits`",
        ),
        (not named and source.table is not None, "table", "`table` is for `format: table` only"),
        (
            named and source.path is not None,
            "path",
            "a table of the catalog has no `path`: the catalog knows where it is",
        ),
        (
            named and not re.fullmatch(rf"{part}(\.{part}){{0,2}}", source.table or "t"),
            "table",
            "write the table's name like `visits`, `shop.visits` or `catalog.shop.visits`",
        ),
        (
            source.path is None and not source.options and not named,
            "",
            "a source needs `path` or `options`",
        ),
        (
            wants_schema,
            "",
            f"format {source.format} needs `schema`, like `schema: user_id STRING, ts TIMESTAMP`",
        ),
        (
            kafka and source.path is not None,
            "path",
            "Kafka has no path: give `kafka.bootstrap.servers` and `subscribe` under `options`",
        ),
        (
            kafka and source.value_format is None,
            "",
            f"a Kafka source needs `value_format`: {' or '.join(VALUE_FORMATS)}",
        ),
        (
            not kafka and source.value_format is not None,
            "value_format",
            "`value_format` is for Kafka sources only",
        ),
        (
            kafka and source.value_format not in (*VALUE_FORMATS, None),
            "value_format",
            f"value_format must be {' or '.join(VALUE_FORMATS)}",
        ),
        (
            avro and source.value_schema is None,
            "",
            "`value_format: avro` needs `value_schema`, like `value_schema: visits.avsc`",
        ),
        (
            not avro and source.value_schema is not None,
            "value_schema",
            "`value_schema` is for `value_format: avro` only",
        ),
        (refused_option(source) is not None, "options", refused_option(source) or ""),
        (refused_schema(source) is not None, "schema", refused_schema(source) or ""),
        (kafka and source.static, "static", "a Kafka topic cannot be a static table"),
        *feed_rules(source),
        *column_rules(source),
        (
            not source.static and source.event_time is None,
            "",
            "a stream needs `event_time`: the column that windows are cut by",
        ),
        (
            not source.static and not source.privacy_unit and source.cap is not None,
            "cap",
            "a cap of users needs `privacy_unit`, the column or columns that name a user; a cap of rows says `privacy_level: EVENT`",
        ),
        (
            source.static and source.privacy_unit != (),
            "privacy_unit",
            "a static source is public: it has no privacy unit",
        ),
        (
            source.static and source.domains != (),
            "domains",
            "domains are declared at the stream whose keys they are of",
        ),
        (
            source.static and source.public,
            "public",
            "a static source is public: `static: true` says so already",
        ),
        (
            source.ledger in source.apart_from,
            "apart_from",
            f"this names the source's own ledger: name another than {source.ledger!r}",
        ),
        (
            source.static and bool(source.cap or source.event_cap),
            "cap",
            "a static source is public: nothing is spent on it, so it has no cap",
        ),
        (
            not re.fullmatch(r"[A-Za-z0-9_-]+", source.ledger),
            "ledger",
            "a ledger name may have letters, digits, _ and - only",
        ),
    )
    for broken, key, message in rules:
        if broken:
            raise document.error(message, (*at, key) if key else at)


def refused_schema(source: Source) -> str | None:
    """Return what is wrong with DECIMALs in the schema of texts: `1e300000000` in one record takes Spark for ever, before any guard."""
    texts = source.format in ("json", "csv", "xml") or source.value_format == "json"
    plain = re.sub(r"`[^`]*`|'[^']*'|\"[^\"]*\"", "x", source.schema or "")
    # A word that another one or a colon follows is the name of a column.
    found = re.search(
        r"(?i)\b(decimal|dec|numeric)\b(?!\s*:|\s+(?!not\b|comment\b|default\b)\w)", plain
    )
    if source.static or not texts or not found:
        return None
    return "DECIMAL cannot be read safely from text: declare the column as STRING and cast it in FROM, like CAST(price AS DECIMAL(10, 2))"


def _value_schema(read: Block, document: YamlDocument, at: tuple[str, ...]) -> str | None:
    path = _absolute(read.text("value_schema"), document.path)
    if path is None:
        return None
    try:
        text = Path(path).read_text(encoding="utf-8")
        if json.loads(text)["type"] != "record":
            raise ValueError
    except OSError as problem:
        raise document.error(f"{path}: {problem.strerror}", (*at, "value_schema")) from None
    except (ValueError, TypeError, KeyError):
        raise document.error(
            f"{path}: not an Avro schema of a record", (*at, "value_schema")
        ) from None
    return text


def _start(read: Block) -> int | None:
    if "start" not in read.given:
        return None
    given = read.given["start"]
    try:  # YAML reads an unquoted date or time as such
        moment = datetime.fromisoformat(given.isoformat() if isinstance(given, date) else given)
    except (TypeError, ValueError):
        raise read.wrong("start", "a UTC time like '2026-01-01' or '2026-01-01T06:00:00'") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - EPOCH) // timedelta(microseconds=1)


def _options(document: YamlDocument, at: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    texts = {}
    for key, value in document.block(at).given.items():
        if isinstance(value, bool):
            texts[key] = str(value).lower()
        elif isinstance(value, str | int | float):
            texts[key] = str(value)
        else:
            raise document.error(f"`{key}` must be text, a number, true or false", (*at, key))
    return tuple(sorted(texts.items()))


def _change_feed(read: Block) -> FeedForm | None:
    written = read.text("change_feed").upper()
    if written and written not in [*FeedForm]:
        raise read.wrong("change_feed", " or ".join(FeedForm))
    return FeedForm(written) if written else None


def _columns(read: Block, name: str) -> tuple[str, ...]:
    value = read.given.get(name, [])
    columns = [value] if isinstance(value, str) else value
    named = isinstance(columns, list) and all(
        isinstance(column, str) and column.strip() for column in columns
    )
    if not named or (name in read.given and not columns):
        raise read.wrong(name, "a column name or a list of them")
    names = tuple(column.strip().lower() for column in columns)
    if len(set(names)) < len(names):
        raise read.wrong(name, "a list that names each column once")
    return names


def _apart_from(read: Block) -> tuple[str, ...]:
    value = read.given.get("apart_from", [])
    named = [value] if isinstance(value, str) else value
    if not isinstance(named, list) or not all(
        isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_-]+", name) for name in named
    ):
        raise read.wrong("apart_from", "the name of a ledger or a list of them")
    return tuple(sorted(set(named)))


def _absolute(path: str, file: Path | None) -> str | None:
    if not path:
        return None
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", path):
        return path
    return str((file.resolve().parent if file else Path.cwd()) / Path(path).expanduser())
