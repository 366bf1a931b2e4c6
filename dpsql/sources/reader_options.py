"""Options of Spark's readers that a stream may not have, since records would be missing, count twice or take others with them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

FILE_FORMATS = ("parquet", "orc", "avro", "json", "csv", "xml", "text")
CATALOG = "table"
"""The format of a source that is a table of Spark's catalog."""

FILES_PER_BATCH = "maxfilespertrigger"
"""The option, in lower case, that says how many files a micro-batch has at most."""

OF_FILES = (FILES_PER_BATCH, "pathglobfilter", "recursivefilelookup")
"""Options of a stream of files in any format."""

OF_JSON = (
    "allowbackslashescapinganycharacter",
    "allowcomments",
    "allownonnumericnumbers",
    "allownumericleadingzeros",
    "allowsinglequotes",
    "allowunquotedcontrolchars",
    "allowunquotedfieldnames",
    "dateformat",
    "locale",
    "primitivesasstring",
    "timestampformat",
)
"""Options of Spark's parser of JSON, in lines and messages."""

_EVERY_FILE = "leave it out: every file is read, once, however old it is, and stays where it is"
_IN_ORDER = "leave it out: files are read in the order of their modification times, and each poll looks anew"
_BY_LINE = "one record with an open quote or bracket would take the records after it. Leave it out and write one record per line, or write Parquet"
_OF_CHANGES = "Leave it out; to pass over commits that change or delete rows write `skipChangeCommits: true`, to count changes declare `change_feed: DELTA`"
_LOST = (
    "failOnDataLoss stays true: records that were lost would be missing from a histogram in silence"
)

_OF_FILES: Mapping[str, tuple[str, str]] = {
    "maxfileage": ("", _EVERY_FILE),
    "filenameonly": ("false", _EVERY_FILE),
    "cleansource": ("off", _EVERY_FILE),
    "modifiedafter": ("", _EVERY_FILE),
    "modifiedbefore": ("", _EVERY_FILE),
    "latestfirst": ("false", _IN_ORDER),
    "maxcachedfiles": ("0", _IN_ORDER),
    "multiline": ("false", _BY_LINE),
    "wholetext": ("false", _BY_LINE),
}
"""By lower-case name: the value that does nothing, and what is wrong with all others."""

_AS_ALWAYS = {"mode": "permissive", "encoding": "utf-8", "enforceschema": "false"}
"""Values that dpsql itself gives to readers of text, by lower-case name."""

_OF_DELTA: Mapping[str, tuple[str, str]] = {
    "ignorechanges": ("false", f"rows that a commit writes again would count twice. {_OF_CHANGES}"),
    "ignorefiledeletion": (
        "false",
        f"rows that a commit writes again would count twice. {_OF_CHANGES}",
    ),
    "ignoredeletes": (
        "false",
        f"deleted rows would stay in the counts without a word. {_OF_CHANGES}",
    ),
    "excluderegex": (
        "",
        "rows of the files that it names would be missing. Leave it out, and filter with WHERE",
    ),
    "failondataloss": ("true", _LOST),
}
_OF_KAFKA: Mapping[str, tuple[str, str]] = {"failondataloss": ("true", _LOST)}

_BY_FORMAT = {
    **dict.fromkeys(FILE_FORMATS, _OF_FILES),
    "delta": _OF_DELTA,
    CATALOG: {**_OF_FILES, **_OF_DELTA},
    "kafka": _OF_KAFKA,
}
SKIPS_CHANGES = "skipchangecommits"


def refused_format(source: Any) -> str | None:
    """Tell why a stream may not have its format; None where it may."""
    if source.static or source.format != "xml":
        return None
    return "a stream of XML is not supported: a tag that a record leaves open takes the next record with it. Write JSON lines or Parquet"


def refused_option(source: Any) -> str | None:
    """Tell what is wrong with an option of a stream (`dpsql.sources.config.Source`); None where nothing is."""
    if source.static:
        return None
    refused = _BY_FORMAT.get(source.format, {})
    for name, value in source.options:
        harmless, reason = refused.get(name.lower(), (value.lower(), ""))
        if value.lower() != harmless:
            return reason if reason == _LOST else f"`{name}` is not supported: {reason}"
        if _is_no_count(name, value):
            return f"`{name}` must be a whole number from 1 to 999999999, not {value!r}; leave it out for the default"
    return None


def _is_no_count(name: str, value: str) -> bool:
    """Tell whether an option says how many files a micro-batch has, with what is no number for that."""
    return name.lower() == FILES_PER_BATCH and not re.fullmatch(r"0*[1-9][0-9]{0,8}", value)


def does_nothing(name: str, value: str) -> bool:
    """Tell whether an option has a reader of files do what it does anyhow."""
    harmless = _OF_FILES.get(name.lower(), ("", ""))[0] or _AS_ALWAYS.get(name.lower())
    return value.lower() == harmless


def passed_over(source: Any) -> tuple[str, ...]:
    """Say in `explain` what a Delta source leaves out at the wish of its options; nothing where it reads everything."""
    options = {name.lower(): value.lower() for name, value in source.options}
    if source.format not in ("delta", CATALOG) or options.get(SKIPS_CHANGES) != "true":
        return ()
    return (
        f"Commits that change or delete rows of `{source.name}` are passed over whole (skipChangeCommits): what they insert does not "
        "count, and rows that they change or delete stay counted as they were.",
    )


def parser_options(source: Any) -> dict[str, str]:
    """Return the options of a source that its parser of JSON takes."""
    return {name: value for name, value in source.options if name.lower() in OF_JSON}
