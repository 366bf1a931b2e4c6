"""Options of readers: which of Spark's a source may have, with and without Spark, and why others are refused."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any

FILE_FORMATS = ("parquet", "orc", "avro", "json", "csv", "xml", "text")
CATALOG = "table"
"""The format of a source that is a table of Spark's catalog."""

FILES_PER_BATCH = "maxfilespertrigger"
"""The option, in lower case, that says how many files a micro-batch has at most."""

BATCH_LIMITS = "(max|min)(files|bytes|offsets)per(trigger|(micro)?batch)|maxtriggerdelay"
"""Names of options that cut what is stored into micro-batches, in lower case and letters only."""

SKIPS_CHANGES = "skipchangecommits"

# Options that are kept, by their names in Spark's documentation.

_OF_FILES = "maxFilesPerTrigger pathGlobFilter recursiveFileLookup"
_OF_TYPED_FILES = f"{_OF_FILES} mergeSchema"
_OF_LINES = "header sep delimiter quote escape nullValue"
_OF_CSV = """charToEscapeQuoteEscaping comment dateFormat timestampFormat emptyValue encoding ignoreLeadingWhiteSpace ignoreTrailingWhiteSpace
locale nanValue negativeInf positiveInf"""
_OF_JSON = """allowBackslashEscapingAnyCharacter allowComments allowNonNumericNumbers allowNumericLeadingZeros allowSingleQuotes
allowUnquotedControlChars allowUnquotedFieldNames dateFormat locale primitivesAsString timestampFormat"""
_OF_FEED = "startingVersion startingTimestamp maxFilesPerTrigger"
_OF_DELTA = f"{_OF_FEED} skipChangeCommits"
_OF_KAFKA = """subscribe subscribePattern assign startingOffsets startingTimestamp startingOffsetsByTimestamp minPartitions maxRecordsPerPartition
groupIdPrefix"""

KEPT: Mapping[str, str] = {
    **dict.fromkeys(("parquet", "orc"), _OF_TYPED_FILES),
    **dict.fromkeys(("avro", "text"), _OF_FILES),
    "csv": f"{_OF_FILES} {_OF_LINES} {_OF_CSV}",
    "json": f"{_OF_FILES} {_OF_JSON}",
    "delta": _OF_DELTA,
    "kafka": f"{_OF_KAFKA} {_OF_JSON}",
    CATALOG: f"{_OF_TYPED_FILES} {_OF_LINES} {_OF_CSV} {_OF_JSON} {_OF_DELTA}",
}
PREFIXES: Mapping[str, tuple[str, ...]] = {
    "kafka": ("kafka.", "fetchoffset."),
    **dict.fromkeys((*FILE_FORMATS, "delta", CATALOG), ("fs.",)),
}
"""How names of options begin that say how a broker or a file system is reached."""

WITHOUT_SPARK: Mapping[str, str] = {
    "csv": f"{_OF_FILES} {_OF_LINES}",
    "json": _OF_FILES,
    "delta": "maxFilesPerTrigger skipChangeCommits",
}

# Options that are refused, unless they say what is done anyhow.

_EVERY_FILE = "leave it out: every file is read, once, however old it is, and stays where it is"
_IN_ORDER = "leave it out: files are read in the order of their modification times, and each poll looks again"
_BY_LINE = "one record with an open quote or bracket would take the records after it. Leave it out and write one record per line, or write Parquet"
_OF_CHANGES = "Leave it out; to pass over commits that change or delete rows write `skipChangeCommits: true`, to count changes declare `change_feed: DELTA`"
_TWICE = f"rows that a commit writes again would count twice. {_OF_CHANGES}"
_FEED = "leave it out and write `change_feed: DELTA`, which reads every change, once"
_LOST = "it stays true: records that were lost would be missing from a histogram in silence"
_DECLARED = "records would decide which types columns have. Leave it out, and write `schema`"
_SET = "dpsql sets it itself, so that no record ends a run or is lost in silence. Leave it out"
_CUT = "one unit's records would decide in which micro-batch those of others are. Leave it out"

REFUSED: Mapping[str, tuple[str | None, str]] = {
    **dict.fromkeys(("maxfileage", "modifiedafter", "modifiedbefore"), (None, _EVERY_FILE)),
    "filenameonly": ("false", _EVERY_FILE),
    "cleansource": ("off", _EVERY_FILE),
    "latestfirst": ("false", _IN_ORDER),
    "maxcachedfiles": ("0", _IN_ORDER),
    **dict.fromkeys(("multiline", "wholetext"), ("false", _BY_LINE)),
    "linesep": (None, _BY_LINE),
    **dict.fromkeys(("ignorechanges", "ignorefiledeletion"), ("false", _TWICE)),
    "ignoredeletes": (
        "false",
        f"deleted rows would stay in the counts without a word. {_OF_CHANGES}",
    ),
    "excluderegex": (
        None,
        "rows of the files that it names would be missing. Leave it out, and filter with WHERE",
    ),
    **dict.fromkeys(("readchangefeed", "readchangedata"), ("false", _FEED)),
    "failondataloss": ("true", _LOST),
    "inferschema": ("false", _DECLARED),
    "mode": ("permissive", _SET),
    "columnnameofcorruptrecord": ("dpsql_corrupt_line", _SET),
    **dict.fromkeys(("enforceschema", "ignoremissingfiles", "ignorecorruptfiles"), ("false", _SET)),
    **dict.fromkeys(("maxcolumns", "enabledatetimeparsingfallback"), (None, _SET)),
    "witheventtimeorder": ("false", _CUT),
}
"""By lower-case name: the value that does nothing, and what is wrong with all others."""

_CUTS_BY_RECORDS = r"(max|min)(bytes|offsets|records|rows|messages|events)per(trigger|(micro)?batch)|maxtriggerdelay"
"""Names of options of any source that end micro-batches by a count to which one unit's records add (assumption A2); in letters only."""

# The form of values, of options in all formats.

_FLAG = ("true|false", "true or false")
_SIGN = (".?", "one character")
_FORMS: Mapping[str, tuple[str, str]] = {
    **{
        name.lower(): _FLAG
        for name in f"header recursiveFileLookup mergeSchema skipChangeCommits {_OF_JSON}".split()
    },
    **dict.fromkeys(("ignoreleadingwhitespace", "ignoretrailingwhitespace"), _FLAG),
    **dict.fromkeys(("dateformat", "timestampformat", "locale"), (".+", "a text")),
    **dict.fromkeys(("quote", "escape", "comment", "chartoescapequoteescaping"), _SIGN),
    FILES_PER_BATCH: ("0*[1-9][0-9]{0,8}", "a whole number from 1 to 999999999"),
    "encoding": (
        "utf-8|us-ascii|iso-8859-1",
        "UTF-8 or ISO-8859-1, which Spark reads; write other files as UTF-8",
    ),
}
"""By lower-case name: a pattern, case aside, and its words."""


def refused_format(source: Any) -> str | None:
    """Tell why a stream may not have its format; None where it may."""
    if source.static or source.format != "xml":
        return None
    return "a stream of XML is not supported: a tag that a record leaves open takes the next record with it. Write JSON lines or Parquet"


def refused_option(source: Any) -> str | None:
    """Tell what is wrong with an option of a source (`dpsql.sources.config.Source`); None where nothing is."""
    problems = (_problem(name, value, source) for name, value in source.options)
    return next(filter(None, problems), None)


def _problem(name: str, value: str, source: Any) -> str | None:
    """Tell what is wrong with an option; of a format that is not known here, only cuts by records are."""
    names = _names(source)
    harmless, reason = REFUSED.get(name.lower(), ("", ""))
    if re.search(_CUTS_BY_RECORDS, re.sub("[^a-z]", "", name.lower())):
        return f"`{name}` is not supported: {_CUT}{_instead(source.format)}"
    if not names:
        return None
    if reason and value.lower() != harmless:
        return f"`{name}` is not supported: {reason}"
    if reason or name.lower().startswith(PREFIXES[source.format]):
        return None
    if name.lower() not in map(str.lower, names):
        return f"`{name}` is no option of format {source.format}: {_nearest(name, names)}"
    form, words = _FORMS.get(name.lower(), ("", ""))
    if form and not re.fullmatch(form, value, re.IGNORECASE | re.DOTALL):
        return f"`{name}` must be {words}, not {value!r}"
    return None


def _names(source: Any) -> Collection[str]:
    """Return the options that a source may have, as Spark spells them; none where any may stand."""
    if source.change_feed:
        feeds = {"delta": _OF_FEED, "kafka": _OF_KAFKA, "json": _OF_FILES}
        return feeds.get(source.format, "").split()
    if source.value_format == "avro":
        return _OF_KAFKA.split()
    if source.static and source.format == "delta":
        return ("maxFilesPerTrigger",)
    return KEPT.get(source.format, "").split()


def _nearest(name: str, names: Collection[str]) -> str:
    by_lower = {known.lower(): known for known in names}
    close_names = difflib.get_close_matches(name.lower(), by_lower, 1)
    if close_names:
        return f"did you mean `{by_lower[close_names[0]]}`?"
    return f"leave it out; there are {', '.join(names)}"


def _instead(source_format: str) -> str:
    if source_format == "kafka":
        return "; a large backlog is read in one micro-batch: start the run with more --buckets (docs/deployment.md)"
    return "; cut files by `maxFilesPerTrigger`"


def spark_option(source: Any, kind: str) -> str | None:
    """Return the option of a source that only Spark reads, None if there is none.

    Args:
        source: the source (`dpsql.sources.config.Source`).
        kind: format of a file that is read as one of the source's.
    """
    if source.format == "kafka":
        return next(iter(parser_options(source)), None)
    names = WITHOUT_SPARK.get(kind, "").lower().split()
    if source.format not in WITHOUT_SPARK or not names:
        return None
    for name, value in source.options:
        is_default = (name.lower(), value.lower()) == ("encoding", "utf-8")
        if name.lower() not in (*names, *REFUSED) and not is_default:
            return name
    return None


def parser_options(source: Any) -> dict[str, str]:
    """Return the options of a source that its parser of JSON takes."""
    names = _OF_JSON.lower().split()
    return {name: value for name, value in source.options if name.lower() in names}


def file_options(source: Any) -> dict[str, str]:
    """Return the options of a source that say which files it has, and how they are reached."""
    names = _OF_FILES.lower().split()
    return {
        name: value
        for name, value in source.options
        if name.lower() in names or name.lower().startswith("fs.")
    }


def batch_limits(source: Any) -> tuple[str, ...]:
    """Return the options by which a source cuts what is stored into micro-batches, as its owner wrote them."""
    names = [name for name, _ in source.options]
    return tuple(
        name for name in names if re.fullmatch(BATCH_LIMITS, re.sub("[^a-z]", "", name.lower()))
    )


def passed_over(source: Any) -> tuple[str, ...]:
    """Say in `explain` what a Delta source leaves out at the wish of its options; nothing where it reads everything."""
    options = {name.lower(): value.lower() for name, value in source.options}
    if source.format not in ("delta", CATALOG) or options.get(SKIPS_CHANGES) != "true":
        return ()
    return (
        f"Commits that change or delete rows of `{source.name}` are passed over whole (skipChangeCommits): what they insert does not "
        "count, and rows that they change or delete stay counted as they were.",
    )
