"""Sources: what may be queried, who its people are and what may be spent on them (`sources.yaml`).

The file is read strictly: an unknown key, a wrong type or a missing setting is a ConfigError that names the line and ends with the
path inside the file, like `at sources.visits.max_users`. Relative paths are relative to the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from dpsql.parsed_query import PrivacyLevel
from dpsql.sources.caps import NO_CAP, Cap, read_caps
from dpsql.sources.change_feed import MOST_DIGITS, TIME, FeedForm, column_rules, feed_rules
from dpsql.sources.declared_types import refused_type, type_word, without_quoted
from dpsql.sources.domains import Domain, read_domains
from dpsql.sources.keys import SOURCE_KEYS
from dpsql.sources.places import overlap, places
from dpsql.sources.policy import NO_POLICY, Policy, read_policy
from dpsql.sources.reader_options import CATALOG, refused_format, refused_option
from dpsql.sources.time_units import UNITS
from dpsql.sources.yaml_file import Block, YamlDocument, read_yaml
from dpsql.times import EPOCH, parse_duration

DEFAULT_MAX_USERS = 10_000_000
DEFAULT_MAX_KEYS = 10_000_000
FORMATS_WITHOUT_SCHEMA_OF_THEIR_OWN = ("csv", "json", "kafka")
VALUE_FORMATS = ("json", "avro")
T = TypeVar("T")
Rule = tuple[bool, str, str]
"""Whether a rule is broken, by which key, and what is wrong."""


_ARGUMENTS = {"privacy_unit": "unit", "event_time": "time"}
"""Settings that `dpsql.session` has under another name."""


@dataclass(frozen=True)
class Source:
    """One stream, or one public static table, that queries may read.

    `dpsql.sources.keys` says what the fields mean that have the name of a key. Names of columns are lower case here; mappings are pairs, sorted by name.

    Args:
        name: lower case, as in FROM.
        path: absolute or a URI. None when `options` or `table` say where it is.
        event_time_unit: what numbers of the event time count since 1970, or `text`; None: it is a TIMESTAMP or a DATE.
        cap: what all runs may spend together on one unit; None is no cap.
        event_cap: what they may spend on one row, at privacy level EVENT.
        uncapped: `cap: none` says on purpose that there is no cap.
        start_us: `start` in microseconds since 1970 UTC.
        ended_rows_kept_us: `ended_rows_kept` in microseconds; None: 7 days.
        max_ahead_us: `max_ahead` in microseconds; None: the query's trigger interval.
        time_unit: None: seconds.
        unavailable_value: None: Debezium's.
        of_frame: it was made of arguments, for records in memory; messages speak of these then.
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
    ended_rows_kept_us: int | None = None
    decimals: tuple[tuple[str, int], ...] = ()
    time_unit: str | None = None
    unavailable_value: str | None = None
    schema_registry: bool = False
    domains: tuple[tuple[str, Domain], ...] = ()
    max_ahead_us: int | None = None
    event_time_unit: str | None = None
    policy: Policy = NO_POLICY
    of_frame: bool = False
    session_share: float = 0.0

    def __post_init__(self) -> None:
        if self.change_feed and not self.event_time:
            object.__setattr__(self, "event_time", TIME)
        unit: Any = self.privacy_unit  # one name is what people write
        if isinstance(unit, str):
            object.__setattr__(self, "privacy_unit", (unit,))
        if not self.ledger:
            object.__setattr__(self, "ledger", self.name)

    def collisions(self, users: int, groups: int) -> float:
        """Return the probability that 64-bit ids collide so that it matters: of so many users, and K groups of one user.

        K ids of one user can become more through keys that share 32 bits with one of them: K (1 + max_keys / 2^32) on average.
        """
        ids = groups * (1 + self.max_keys / 2.0**32)
        return (users + ids * self.max_keys) / 2.0**64

    def place(self, key: str) -> str:
        """Return where a setting is declared: `sources.visits.start`, or `start= in dpsql.session`."""
        if self.of_frame:
            return f"{_ARGUMENTS.get(key, key)}= in dpsql.session"
        return f"sources.{self.name}.{key}"

    def declared(self, key: str, example: str) -> str:
        """Return what to write where a setting is missing.

        Args:
            key: as in sources.yaml.
            example: its value there.
        """
        if self.of_frame:
            return f"write {_ARGUMENTS.get(key, key)}={example!r} in dpsql.session(...)"
        return f"add a line like `{key}: {example}` to sources.{self.name}"

    def cap_of(self, level: PrivacyLevel) -> Cap | None:
        """Return the cap of one level."""
        return self.event_cap if level is PrivacyLevel.EVENT else self.cap


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
    """Load the sources of a file `sources.yaml`, or of what would stand in it: `{"visits":
    {"format": "parquet", "path": "data/visits", ...}}`.

    Raises:
        ConfigError: the file is missing, is not UTF-8 or not YAML, or something in it is not accepted.
    """
    in_memory = (
        YamlDocument(None, {"sources": dict(path)}, {}) if isinstance(path, Mapping) else None
    )
    document = in_memory or read_yaml(Path(path))  # type: ignore[arg-type]
    if "sources" not in document.block((), ("sources",)).settings:
        raise document.error("no sources: write `sources:` and below it one block per source", ())
    blocks = document.block(("sources",)).settings
    if not blocks:
        raise document.error("no source is declared", ("sources",))
    sources = [_source(document, name) for name in blocks]
    _check_places(sources, document)
    shared_sources = _with_shared_caps(sources, document)
    _check_policies(shared_sources, document)
    return Sources(shared_sources, document.path)


def _check_policies(sources: tuple[Source, ...], document: YamlDocument) -> None:
    """Refuse a policy of people whose ledger has no cap: many small queries are one large one."""
    for source in sources:
        level = source.policy.protects
        if source.policy != NO_POLICY and source.cap_of(level) is None:
            raise document.error(
                f"a policy bounds one query, and nothing bounds how many queries run: write a `cap` of level {level} next to it",
                ("sources", source.name, "policy"),
            )


def _check_places(sources: list[Source], document: YamlDocument) -> None:
    """Refuse streams that read the same records on two ledgers, one with a cap: it would not see what the other spends."""
    streams = [(source, places(source)) for source in sources if not source.static]
    for number, (source, reads) in enumerate(streams):
        for earlier, earlier_reads in streams[:number]:
            caps = source.cap, source.event_cap, earlier.cap, earlier.event_cap
            is_apart = earlier.ledger in source.apart_from or source.ledger in earlier.apart_from
            if (
                source.ledger == earlier.ledger
                or is_apart
                or not any(caps)
                or not overlap(reads, earlier_reads)
            ):
                continue
            raise document.error(
                f"source {source.name!r} reads what {earlier.name!r} reads, but they spend on two ledgers, and a cap of one does not see the "
                f"other. Write `ledger: {earlier.ledger}` here, to share ledger and cap; or, if their budgets are to be apart on purpose, "
                f"`apart_from: {earlier.ledger}`",
                ("sources", source.name),
            )


def _with_shared_caps(sources: list[Source], document: YamlDocument) -> tuple[Source, ...]:
    """Share caps and limits of policies among the sources of a ledger: one of them declares them for all."""
    policies: dict[str, Policy] = {}
    for source in sources:
        policies[source.ledger] = policies.get(source.ledger, NO_POLICY).within(source.policy)
    caps: dict[str, Source] = {}
    for source in sources:
        declared = source.cap or source.event_cap or source.uncapped
        first = caps.setdefault(source.ledger, source) if declared else source
        if (first.cap, first.event_cap) != (source.cap, source.event_cap):
            message = f"source {first.name!r} declares another cap for ledger {source.ledger!r}; sources that share a ledger share its cap"
            raise document.error(message, ("sources", source.name, "cap"))
    return tuple(
        replace(
            source,
            cap=caps[source.ledger].cap,
            event_cap=caps[source.ledger].event_cap,
            uncapped=caps[source.ledger].uncapped,
            policy=source.policy.within(policies[source.ledger]),
        )
        if source.ledger in caps and not source.static
        else source
        for source in sources
    )


def _source(document: YamlDocument, name: str) -> Source:
    key_path = ("sources", name)
    if not re.fullmatch(r"[a-z_][a-z0-9_]*", name):
        raise document.error(
            f"source name {name!r} may have lower-case letters, digits and _ only", key_path
        )
    block = document.block(key_path, SOURCE_KEYS)
    static = block.boolean("static")
    caps = (
        read_caps(document, (*key_path, "cap"), parse_duration)
        if block.settings.get("cap", NO_CAP) != NO_CAP
        else {}
    )
    event_time, event_time_unit = _event_time(block, document, key_path)
    source = Source(
        name=name,
        format=block.text("format", required="like `format: parquet`").lower(),
        path=_absolute(block.text("path"), document.path),
        options=_options(document, (*key_path, "options")) if "options" in block.settings else (),
        schema=block.text("schema") or None,
        event_time=event_time.lower() or None,
        event_time_unit=event_time_unit or None,
        privacy_unit=_columns(block, "privacy_unit"),
        static=static,
        max_users=block.whole_number("max_users", DEFAULT_MAX_USERS, minimum=1),
        max_keys=block.whole_number("max_keys", DEFAULT_MAX_KEYS, minimum=1),
        max_malformed=block.whole_number("max_malformed", 0, minimum=0),
        cap=caps.get(PrivacyLevel.USER),
        event_cap=caps.get(PrivacyLevel.EVENT),
        ledger=block.text("ledger") or name,
        value_format=block.text("value_format").lower() or None,
        value_schema=_value_schema(block, document, key_path),
        start_us=_start(block),
        table=block.text("table") or None,
        uncapped=block.settings.get("cap") == NO_CAP,
        apart_from=_apart_from(block),
        public=block.boolean("public"),
        change_feed=_change_feed(block),
        primary_key=_columns(block, "primary_key"),
        sequence_by=block.text("sequence_by") or None,
        ended_rows_kept_us=block.duration("ended_rows_kept"),
        decimals=_nested(block, "decimals", _decimals) or (),
        time_unit=block.text("time_unit") or None,
        unavailable_value=block.text("unavailable_value") or None,
        schema_registry=block.boolean("schema_registry"),
        domains=_nested(block, "domains", read_domains) or (),
        max_ahead_us=block.duration("max_ahead"),
        session_share=block.share("session_share"),
        policy=_nested(block, "policy", read_policy) or NO_POLICY,
    )
    _check_together(source, document, key_path)
    return source


def _nested(
    block: Block, name: str, reader: Callable[[YamlDocument, tuple[str, ...]], T]
) -> T | None:
    """Return the block of a setting of a source; None if it is not there."""
    if name not in block.settings:
        return None
    return reader(block.document, (*block.key_path, name))


def _check_together(source: Source, document: YamlDocument, key_path: tuple[str, ...]) -> None:
    """Check settings that depend on one another."""
    rules: tuple[Rule, ...] = (
        *_place_rules(source),
        *_value_rules(source),
        (refused_format(source) is not None, "format", refused_format(source) or ""),
        (refused_option(source) is not None, "options", refused_option(source) or ""),
        (refused_schema(source) is not None, "schema", refused_schema(source) or ""),
        (
            source.format == "kafka" and source.static,
            "static",
            "a Kafka topic cannot be a static table",
        ),
        *feed_rules(source),
        *column_rules(source),
        *_budget_rules(source),
    )
    for broken, key, message in rules:
        if broken:
            raise document.error(message, (*key_path, key) if key else key_path)


def _place_rules(source: Source) -> Iterator[Rule]:
    """Yield the rules on where the records are, and on who says what columns they have."""
    is_catalog = source.format == CATALOG
    part = r"[A-Za-z_][A-Za-z0-9_]*"
    wants_schema = (
        source.static and source.format in FORMATS_WITHOUT_SCHEMA_OF_THEIR_OWN and not source.schema
    )
    yield (
        is_catalog and source.table is None,
        "",
        "format table needs `table`: its name in the catalog, like `table: shop.visits`",
    )
    yield (
        not is_catalog and source.table is not None,
        "table",
        "`table` is for `format: table` only",
    )
    yield (
        is_catalog and source.path is not None,
        "path",
        "a table of the catalog has no `path`: the catalog knows where it is",
    )
    yield (
        is_catalog and not re.fullmatch(rf"{part}(\.{part}){{0,2}}", source.table or "t"),
        "table",
        "write the table's name like `visits`, `shop.visits` or `catalog.shop.visits`",
    )
    yield (
        source.path is None and not source.options and not is_catalog,
        "",
        "a source needs `path` or `options`",
    )
    yield (
        wants_schema,
        "",
        f"format {source.format} needs `schema`, like `schema: user_id STRING, ts TIMESTAMP`",
    )


def _value_rules(source: Source) -> Iterator[Rule]:
    """Yield the rules on Kafka's messages, and on how their values are written."""
    kafka = source.format == "kafka"
    avro = source.value_format == "avro"
    yield (
        kafka and source.path is not None,
        "path",
        "Kafka has no path: give `kafka.bootstrap.servers` and `subscribe` under `options`",
    )
    yield (
        kafka and source.value_format is None,
        "",
        f"a Kafka source needs `value_format`: {' or '.join(VALUE_FORMATS)}",
    )
    yield (
        not kafka and source.value_format is not None,
        "value_format",
        "`value_format` is for Kafka sources only",
    )
    yield (
        not kafka and source.schema_registry,
        "schema_registry",
        "`schema_registry` is for Kafka sources only",
    )
    yield (
        kafka and source.value_format not in (*VALUE_FORMATS, None),
        "value_format",
        f"value_format must be {' or '.join(VALUE_FORMATS)}",
    )
    yield (
        avro and source.value_schema is None,
        "",
        "`value_format: avro` needs `value_schema`, like `value_schema: visits.avsc`",
    )
    yield (
        not avro and source.value_schema is not None,
        "value_schema",
        "`value_schema` is for `value_format: avro` only",
    )


def _budget_rules(source: Source) -> Iterator[Rule]:
    """Yield the rules on who is protected, and on what may be spent."""
    yield (
        not source.static and not source.privacy_unit and source.cap is not None,
        "cap",
        "a cap of users needs `privacy_unit`, the column or columns that name a user; a cap of rows says `privacy_level: EVENT`",
    )
    yield (
        source.static and source.privacy_unit != (),
        "privacy_unit",
        "a static source is public: it has no privacy unit",
    )
    yield (
        source.static and source.domains != (),
        "domains",
        "domains are declared at the stream whose keys they are of",
    )
    yield (
        source.static and source.session_share > 0,
        "session_share",
        "a static source is public: nothing is paid for its answers",
    )
    yield (
        source.static and source.public,
        "public",
        "a static source is public: `static: true` says so already",
    )
    yield (
        source.ledger in source.apart_from,
        "apart_from",
        f"this names the source's own ledger: name another than {source.ledger!r}",
    )
    yield (
        source.static and bool(source.cap or source.event_cap),
        "cap",
        "a static source is public: nothing is spent on it, so it has no cap",
    )
    yield (
        not re.fullmatch(r"[A-Za-z0-9_-]+", source.ledger),
        "ledger",
        "a ledger name may have letters, digits, _ and - only",
    )


def refused_schema(source: Source) -> str | None:
    """Return what is wrong with a schema, also of DECIMALs in texts: `1e300000000` in one record takes Spark for ever, before any guard."""
    schema = source.schema or ""
    is_text = source.format in ("json", "csv", "xml") or source.value_format == "json"
    has_decimal = is_text and type_word("decimal|dec|numeric", without_quoted(schema))
    if has_decimal and not source.static:
        return "DECIMAL cannot be read safely from text: declare the column as STRING and cast it in FROM, like CAST(price AS DECIMAL(10, 2))"
    return refused_type(schema)


def _value_schema(block: Block, document: YamlDocument, key_path: tuple[str, ...]) -> str | None:
    path = _absolute(block.text("value_schema"), document.path)
    if path is None:
        return None
    try:
        text = Path(path).read_text(encoding="utf-8")
        if json.loads(text)["type"] != "record":
            raise ValueError
    except OSError as problem:
        raise document.error(f"{path}: {problem.strerror}", (*key_path, "value_schema")) from None
    except (ValueError, TypeError, KeyError):
        raise document.error(
            f"{path}: not an Avro schema of a record", (*key_path, "value_schema")
        ) from None
    return text


def _event_time(block: Block, document: YamlDocument, key_path: tuple[str, ...]) -> tuple[str, str]:
    """Return the column of event times, and the unit of its numbers."""
    if not isinstance(block.settings.get("event_time"), dict):
        return block.text("event_time"), ""
    settings = document.block((*key_path, "event_time"), ("column", "unit"))
    column = settings.text("column", required="like `column: ms`")
    unit = settings.text("unit", required="like `unit: milliseconds`").lower()
    if unit not in UNITS:
        raise settings.wrong("unit", " or ".join(UNITS))
    return column, unit


def _start(block: Block) -> int | None:
    if "start" not in block.settings:
        return None
    value = block.settings["start"]
    try:  # YAML reads an unquoted date or time as such
        moment = datetime.fromisoformat(value.isoformat() if isinstance(value, date) else value)
    except (TypeError, ValueError):
        raise block.wrong(
            "start", "a UTC time like '2026-01-01' or '2026-01-01T06:00:00'"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - EPOCH) // timedelta(microseconds=1)


def _options(document: YamlDocument, key_path: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    texts = {}
    for key, value in document.block(key_path).settings.items():
        if isinstance(value, bool):
            texts[key] = str(value).lower()
        elif isinstance(value, str | int | float):
            texts[key] = str(value)
        else:
            raise document.error(f"`{key}` must be text, a number, true or false", (*key_path, key))
    return tuple(sorted(texts.items()))


def _decimals(document: YamlDocument, key_path: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    settings = document.block(key_path).settings
    for name, scale in settings.items():
        if not isinstance(scale, int) or not 0 <= scale <= MOST_DIGITS:
            message = f"`{name}` must be its number of digits after the point, 0 to {MOST_DIGITS}"
            raise document.error(message, (*key_path, name))
    return tuple(sorted((name.lower(), scale) for name, scale in settings.items()))


def _change_feed(block: Block) -> FeedForm | None:
    form = block.text("change_feed").upper()
    if form and form not in [*FeedForm]:
        raise block.wrong("change_feed", " or ".join(FeedForm))
    return FeedForm(form) if form else None


def _columns(block: Block, name: str) -> tuple[str, ...]:
    value = block.settings.get(name, [])
    columns = [value] if isinstance(value, str) else value
    is_valid = isinstance(columns, list) and all(
        isinstance(column, str) and column.strip() for column in columns
    )
    if not is_valid or (name in block.settings and not columns):
        raise block.wrong(name, "a column name or a list of them")
    names = tuple(column.strip().lower() for column in columns)
    if len(set(names)) < len(names):
        raise block.wrong(name, "a list that names each column once")
    return names


def _apart_from(block: Block) -> tuple[str, ...]:
    value = block.settings.get("apart_from", [])
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(
        isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_-]+", name) for name in names
    ):
        raise block.wrong("apart_from", "the name of a ledger or a list of them")
    return tuple(sorted(set(names)))


def _absolute(path: str, file: Path | None) -> str | None:
    if not path:
        return None
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", path):
        return path
    return str((file.resolve().parent if file else Path.cwd()) / Path(path).expanduser())
