"""What an operator's tools read of a run, read strictly: lines of the log by their schema, and Prometheus' text format 0.0.4 by its grammar."""

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dpsql.lake.event_log import COMMON, SCHEMA, VERSION

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
SAMPLE = re.compile(rf"(?P<name>{NAME})(?:\{{(?P<labels>(?:{LABEL}(?:,{LABEL})*,?)?)\}})? (?P<value>\S+)(?: -?\d+)?")
TYPE = re.compile(rf"# TYPE ({NAME}) (counter|gauge|histogram|summary|untyped)")
HELP = re.compile(rf"# HELP ({NAME}) (?:[^\\\n]|\\[\\n])*")
VALUE = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?Inf|NaN")
ESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


@dataclass
class Metric:
    type: str
    samples: dict[frozenset[tuple[str, str]], float] = field(default_factory=dict)


def parsed(text: str) -> dict[str, Metric]:
    """The metrics by name.

    Raises:
        ValueError: the text is not of the format: a line cannot be read, a metric is typed twice, after its samples or not in one block,
            two samples have the same labels, a counter is negative, or the end of the last line is missing.
    """
    if not text.endswith("\n"):
        raise ValueError("the last line does not end")
    found, block = dict[str, Metric](), ""
    for line in text[:-1].split("\n"):
        if typed := TYPE.fullmatch(line):
            if typed[1] in found:
                raise ValueError(f"typed twice, or after its samples: {line}")
            block, found[typed[1]] = typed[1], Metric(typed[2])
        elif sample := SAMPLE.fullmatch(line):
            _add(found, block, sample)
            block = sample["name"]
        elif line and not HELP.fullmatch(line) and (not line.startswith("#") or line.startswith(("# TYPE", "# HELP"))):
            raise ValueError(f"not of the format: {line}")
    return found


def _add(found: dict[str, Metric], block: str, sample: re.Match[str]) -> None:
    name, value = sample["name"], sample["value"]
    if name in found and name != block:
        raise ValueError(f"{name} is not in one block")
    metric = found.setdefault(name, Metric("untyped"))
    pairs = [(label, re.sub(r"\\.", lambda escape: ESCAPED[escape[0]], text)) for label, text in re.findall(LABEL, sample["labels"] or "")]
    if len(dict(pairs)) < len(pairs) or frozenset(pairs) in metric.samples:
        raise ValueError(f"twice the same labels: {sample[0]}")
    if not VALUE.fullmatch(value) or (metric.type == "counter" and not float(value) >= 0):
        raise ValueError(f"not a value of a {metric.type}: {sample[0]}")
    metric.samples[frozenset(pairs)] = float(value)


def check_line(event: dict[str, Any]) -> None:
    """An event has the fields of its kind, each of its type, and no others; numbers count, and times are of the form that is documented."""
    fields = {**COMMON, **SCHEMA[event["kind"]]}
    assert {name: type(value) for name, value in event.items()} == fields, event
    assert event["version"] == VERSION and event["time"].endswith("Z")
    datetime.fromisoformat(event["time"])
    assert all(event[name] >= 0 for name, kind in fields.items() if kind is int and name != "closed_us"), event
    assert all(type(count) is int and count >= 0 for count in event.get("dropped", {}).values()), event
    assert all(type(seconds) in (int, float) and seconds >= 0 for seconds in event.get("seconds", {}).values()), event
