"""What a started run has read so far, in the words of `sources.yaml`: it goes on with the same, or not at all.

One run id sees one input (docs/privacy/index.md, A7). Where a source is declared to be elsewhere, or to have other types, the same noise would go
on over other records, and files would be read again under other names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from dpsql.errors import LakeError
from dpsql.sources.config import Source
from dpsql.sources.reader_options import FILE_FORMATS, FILES_PER_BATCH, parser_options

SCHEMA = "schema"
INPUT_OPTIONS = ("subscribe", "subscribepattern", "assign")
READER = "options of the reader"
"""Options of files: `header`, `sep`, `timestampFormat`, `pathGlobFilter` and so on. A micro-batch that is read again must give the same records."""

FREE_OPTIONS = frozenset(
    {
        FILES_PER_BATCH,
        "latestfirst",
        "maxcachedfiles",
        "mode",
        "columnnameofcorruptrecord",
        *INPUT_OPTIONS,
    }
)
"""Options that no origin keeps: these say when a file is read, or are set by dpsql whatever the user gives."""

CREDENTIAL = re.compile(r"secret|password|token|access.?key|credential", re.IGNORECASE)
"""In names of options that are not kept, and may change."""


def declaration(source: Source) -> dict[str, str]:
    """Return the settings of a source that make a run's input, by their names in `sources.yaml`; those that are not there are left out."""
    options = {name.lower(): value for name, value in source.options}
    settings = {
        "ledger": source.ledger,
        "format": source.format,
        "path": source.path,
        "table": source.table,
        SCHEMA: ", ".join(_columns(source.schema or "")),
        "event_time.unit": source.event_time_unit,
        "value_format": source.value_format,
        "value_schema": source.value_schema
        and hashlib.sha256(source.value_schema.encode()).hexdigest()[:16],
        "start": None if source.start_us is None else f"{source.start_us} us",
        "change_feed": source.change_feed,
        "primary_key": ", ".join(source.primary_key),
        "sequence_by": source.sequence_by,
        "decimals": ", ".join(f"{name}: {scale}" for name, scale in source.decimals),
        "time_unit": source.time_unit,
        "unavailable_value": source.unavailable_value,
        "schema_registry": "true" if source.schema_registry else None,
        **{f"options.{name}": options.get(name) for name in INPUT_OPTIONS},
        READER: _reader(options) if source.format in FILE_FORMATS else _of_messages(source),
    }
    return {name: value for name, value in settings.items() if value}


def check_declaration(recorded: Mapping[str, str], source: Source, run: str) -> None:
    """Refuse a source whose input is declared otherwise than when the run was started; columns may be added at the end of its schema.

    Args:
        recorded: its declaration then.
        source: as declared now.
        run: the run's name, for the message.

    Raises:
        LakeError: names what differs, and what stood there.
    """
    current = declaration(source)
    for name in sorted(recorded.keys() | current.keys()):
        was = recorded.get(name)
        stands = current.get(name)
        if was == stands or (name == SCHEMA and was and f"{stands}, ".startswith(f"{was}, ")):
            continue
        raise LakeError(
            f"run {run!r} was started with {_setting_text(name, was)} at sources.{source.name}, and it says {_setting_text(name, stands)} now: one run sees "
            "one input. Put the old setting back, or start a new run under another --name"
        )


def _of_messages(source: Source) -> str | None:
    options = parser_options(source) if source.format == "kafka" else {}
    return _reader({name.lower(): value for name, value in options.items()}) if options else None


def _reader(options: Mapping[str, str]) -> str:
    held = sorted(
        name for name in options if name not in FREE_OPTIONS and not CREDENTIAL.search(name)
    )
    return ", ".join(f"{name}: {options[name]}" for name in held) or "none"


def _setting_text(name: str, value: str | None) -> str:
    return f"no {name}" if value is None else f"{name} {value!r}"


def _columns(ddl: str) -> list[str]:
    """Return the columns of a schema, each in lower case with single spaces; commas inside of types do not separate."""
    depth = 0
    columns = [""]
    for character in ddl:
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            columns.append("")
        else:
            columns[-1] += character
    return [" ".join(column.split()).lower() for column in columns if column.strip()]
