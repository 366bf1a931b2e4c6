"""Declared domains of keys (`domains` of a source): public lists of all values that a key can have. What is outside is in `other`, or dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpsql.sources.yaml_file import Block, YamlDocument

MOST_VALUES = 100_000
OTHER = "other"
MAX_BYTES = 4096
FORMS = "`values: [a list]`, with `other: true` for all else, or `range: [lowest, highest]`"


@dataclass(frozen=True)
class Domain:
    """All values of one key, as texts.

    Args:
        values: in their order.
        ordered: ranges of them mean something.
        whole: they are whole numbers.
        other: the last value stands for everything that is not listed, NULL too.
    """

    values: tuple[str, ...]
    ordered: bool
    whole: bool = False
    other: bool = False

    @property
    def size(self) -> int:
        """How many values there are."""
        return len(self.values)


def read_domains(
    document: YamlDocument, key_path: tuple[str, ...]
) -> tuple[tuple[str, Domain], ...]:
    """Return the block `domains` of one source: a domain for each name of a key, lower case.

    Raises:
        ConfigError: it is something else, with the line.
    """
    domains = {
        name: _domain(document.block((*key_path, name), ("values", "range", "other")), name)
        for name in document.block(key_path).settings
    }
    if len({name.lower() for name in domains}) < len(domains):
        raise document.error("a key has two domains", key_path)
    return tuple(sorted((name.lower(), domain) for name, domain in domains.items()))


def _domain(block: Block, name: str) -> Domain:
    settings = block.settings
    if ("values" in settings) == ("range" in settings):
        raise block.document.error(f"the domain of `{name}` needs {FORMS}", block.key_path)
    if "range" in settings:
        if "other" in settings:
            raise block.document.error(
                "`other` is a text, and a range has whole numbers: list them as texts under `values`",
                block.key_path,
            )
        return _range(block)
    return _listed(block, settings)


def _range(block: Block) -> Domain:
    bounds = block.settings["range"]
    is_whole = isinstance(bounds, list) and all(
        isinstance(number, int) and not isinstance(number, bool) for number in bounds
    )
    if not is_whole or len(bounds) != 2 or not -(2**63) <= bounds[0] <= bounds[1] < 2**63:
        raise block.wrong(
            "range", "two whole numbers, the lowest and the highest value, like `range: [0, 23]`"
        )
    if bounds[1] - bounds[0] >= MOST_VALUES:
        raise block.wrong("range", f"of at most {MOST_VALUES:,} values")
    return Domain(
        tuple(str(number) for number in range(bounds[0], bounds[1] + 1)), ordered=True, whole=True
    )


def _listed(block: Block, settings: Mapping[str, Any]) -> Domain:
    values = settings["values"]
    has_other = block.boolean("other")
    texts = isinstance(values, list) and all(isinstance(value, str) for value in values)
    numbers = isinstance(values, list) and all(
        isinstance(value, int) and not isinstance(value, bool) for value in values
    )
    if not values or not (texts or numbers):
        raise block.wrong(
            "values",
            "a list of texts, or of whole numbers (put quotes around what YAML reads as something else)",
        )
    all_values = (*map(str, values), *([OTHER] if has_other else []))
    if len(all_values) > MOST_VALUES:
        raise block.document.error(
            f"a domain has at most {MOST_VALUES:,} values, this one {len(all_values):,}",
            block.key_path,
        )
    if has_other and numbers:
        raise block.wrong(
            "other", "left out of a list of numbers: what it stands for is the text `other`"
        )
    if len(set(all_values)) < len(all_values):
        raise block.wrong(
            "values",
            f"a list that names each value once{', and `other` not at all: `other: true` adds it' if has_other else ''}",
        )
    if any(len(value.encode()) > MAX_BYTES for value in all_values):
        raise block.wrong("values", f"a list of texts of at most {MAX_BYTES:,} bytes")
    return Domain(
        all_values,
        ordered=numbers and list(values) == sorted(values),
        whole=numbers,
        other=has_other,
    )
