"""A YAML file that knows the line of each of its values, and refuses a name that is written twice."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dpsql.errors import ConfigError
from dpsql.times import parse_duration

MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class YamlDocument:
    """`value` is the content; `lines` maps the path of a value to its line; `path` is the file, None for what was made in Python."""

    path: Path | None
    value: Any
    lines: dict[tuple[str, ...], int]

    def error(self, message: str, key_path: tuple[str, ...]) -> ConfigError:
        """Return a ConfigError that starts with file and line and ends with the path inside the file."""
        place = f"{self.path}:{self.lines.get(key_path, 1)}: " if self.path else ""
        return ConfigError(f"{place}{message}" + (f" at {'.'.join(key_path)}" if key_path else ""))

    def block(self, key_path: tuple[str, ...], allowed: tuple[str, ...] | None = None) -> Block:
        """Return the mapping at a path; with `allowed`, any other name in it is refused.

        Raises:
            ConfigError: not a mapping, a name that is not text, an unknown name.
        """
        value = self.value
        for key in key_path:
            value = value[int(key)] if isinstance(value, list) else value[key]
        if not isinstance(value, dict):
            raise self.error("must be a block of `name: value` lines", key_path)
        for key in value:
            if not isinstance(key, str):
                raise self.error(f"the name {key!r} must be text: put it in quotes", key_path)
            if allowed is not None and key not in allowed:
                near = difflib.get_close_matches(key, allowed, 1)
                hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(allowed)}"
                raise self.error(f"unknown setting `{key}`: {hint}", (*key_path, key))
        return Block(self, key_path, value)


@dataclass(frozen=True)
class Block:
    """Typed look-ups in one mapping of the file; each raises a ConfigError for a value of another type."""

    document: YamlDocument
    key_path: tuple[str, ...]
    settings: Mapping[str, Any]

    def text(self, key: str, required: str = "") -> str:
        """Return text that is not blank; '' when absent, unless `required` says what to write."""
        value = self.settings.get(key, "")
        if key not in self.settings and required:
            raise self.document.error(f"`{key}` is missing: add a line {required}", self.key_path)
        if not isinstance(value, str) or (key in self.settings and not value.strip()):
            raise self.wrong(key, "text")
        return value.strip()

    def duration(self, name: str) -> int | None:
        """Return microseconds, perhaps 0; None if it is not given."""
        try:
            return parse_duration(str(self.settings[name]), 0) if name in self.settings else None
        except ValueError:
            raise self.wrong(name, "a duration like '5 minutes'") from None

    def boolean(self, key: str) -> bool:
        """Return true or false; false when absent."""
        value = self.settings.get(key, False)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def whole_number(self, key: str, default: int, minimum: int) -> int:
        """Return a whole number from `minimum` on."""
        value = self.settings.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value < 1 << 62:
            raise self.wrong(key, f"a whole number from {minimum} on")
        return value

    def share(self, key: str) -> float:
        """Return a number from 0 on and below 1; 0 when absent."""
        value = self.settings.get(key, 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise self.wrong(key, "a number from 0 on and below 1")
        return float(value)

    def positive(self, key: str) -> float:
        """Return a finite number above 0; it must be there."""
        if key not in self.settings:
            raise self.document.error(f"`{key}` is missing", self.key_path)
        value = self.settings[key]
        try:  # YAML 1.1 reads 1e-9 (without a dot) as text
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not 0 < number < math.inf:
            raise self.wrong(key, "a number above 0")
        return number

    def wrong(self, key: str, expected: str) -> ConfigError:
        """Return the error for a value of the wrong type."""
        value_text = repr(self.settings.get(key))
        return self.document.error(
            f"`{key}` must be {expected}, not {value_text[:60]}{'...' * (len(value_text) > 60)}",
            (*self.key_path, key),
        )


def read_yaml(path: Path) -> YamlDocument:
    """Parse one YAML document whose top is a mapping.

    Raises:
        ConfigError: missing, unreadable, over a megabyte, not UTF-8, not YAML, several documents, empty, a name written twice.
    """
    text = _text(path)
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        lines: dict[tuple[str, ...], int] = {}
        if node is not None:
            _walk(path, node, (), lines, set())
        value = loader.construct_document(node) if node is not None else None
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise ConfigError(
            f"{path}{where}: not valid YAML: {problem.problem or problem.context}"
        ) from None
    except ConfigError:
        raise
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as problem:
        raise ConfigError(f"{path}: not valid YAML: {str(problem).splitlines()[0]}") from None
    if value is None:
        raise ConfigError(f"{path}: the file is empty")
    if not isinstance(value, dict):
        raise ConfigError(f"{path}:1: the top of the file must be a block of `name: value` lines")
    return YamlDocument(path, value, lines)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file; name the right one with --sources, or make one to start from: dpsql init"
        ) from None
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else str(problem)
        raise ConfigError(f"{path}: cannot be read: {reason}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: larger than a megabyte")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise ConfigError(f"{path}: not UTF-8 (byte {problem.start + 1})") from None


def _walk(
    path: Path,
    node: yaml.Node,
    key_path: tuple[str, ...],
    lines: dict[tuple[str, ...], int],
    ancestors: set[int],
) -> None:
    """Note the line of every named value; aliases are followed, but never in a circle."""
    lines.setdefault(key_path, node.start_mark.line + 1)
    if isinstance(node, yaml.ScalarNode) or id(node) in ancestors:
        return
    if len(key_path) > 8:
        raise ConfigError(f"{path}: nested too deeply at {'.'.join(key_path)}")
    if isinstance(node, yaml.SequenceNode):
        for i, entry in enumerate(node.value):
            _walk(path, entry, (*key_path, str(i)), lines, ancestors | {id(node)})
        return
    names: set[str] = set()
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigError(f"{path}:{key.start_mark.line + 1}: a name must be text")
        child_path = (*key_path, key.value)
        if key.value in names and key.value != "<<":
            raise ConfigError(
                f"{path}:{key.start_mark.line + 1}: `{key.value}` is written twice at {'.'.join(child_path)}"
            )
        names.add(key.value)
        lines[child_path] = key.start_mark.line + 1
        _walk(path, value, child_path, lines, ancestors | {id(node)})
