"""Domains in sources.yaml: lists, ranges, and what is refused."""

from pathlib import Path

import pytest

from dpsql.errors import ConfigError
from dpsql.sources.config import load_sources
from dpsql.sources.domains import Domain

HEAD = "sources:\n  visits:\n    format: parquet\n    path: data\n    event_time: ts\n    privacy_unit: user_id\n"


def read(tmp_path: Path, text: str, head: str = HEAD) -> dict[str, Domain]:
    file = tmp_path / "sources.yaml"
    file.write_text(head + text)
    return dict(load_sources(file)["visits"].domains)


def test_lists_ranges_and_all_else(tmp_path: Path) -> None:
    text = "    domains:\n      Url: {values: [/a, /b], other: true}\n      hour: {range: [-1, 2]}\n      status: {values: [404, 200]}\n"
    assert read(tmp_path, text) == {
        "url": Domain(("/a", "/b", "other"), ordered=False, other=True),
        "hour": Domain(("-1", "0", "1", "2"), ordered=True, whole=True),
        "status": Domain(("404", "200"), ordered=False, whole=True),
    }
    assert read(tmp_path, "") == {}


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ("url: {}", ":8: the domain of `url` needs `values"),
        ("url: {values: [a], range: [0, 1]}", "needs `values"),
        ("url: {value: [a]}", "unknown setting `value`: did you mean `values`"),
        ("url: {values: []}", "`values` must be a list of texts, or of whole numbers"),
        ("url: {values: [a, 1]}", "`values` must be a list of texts, or of whole numbers"),
        ("url: {values: [yes, no]}", "`values` must be a list of texts, or of whole numbers"),
        ("url: {values: [1.5]}", "`values` must be a list of texts, or of whole numbers"),
        ("url: {values: [a, a]}", "names each value once"),
        ("url: {values: [a, other], other: true}", "`other: true` adds it"),
        ("url: {values: [1, 2], other: true}", "left out of a list of numbers"),
        ("url: {values: [%s]}" % ("a" * 4097), "at most 4,096 bytes"),
        ("hour: {range: [0, 23], other: true}", "list them as texts under `values`"),
        ("hour: {range: [3, 2]}", "two whole numbers"),
        ("hour: {range: [0, true]}", "two whole numbers"),
        ("hour: {range: 24}", "two whole numbers"),
        ("hour: {range: [0, 100000]}", "of at most 100,000 values"),
        ("url: {values: [a]}\n      URL: {values: [b]}", "a key has two domains"),
        ("url: [a, b]", "must be a block"),
    ],
)
def test_what_is_no_domain_is_refused(tmp_path: Path, block: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("[", r"\[")):
        read(tmp_path, f"    domains:\n      {block}\n")


def test_a_public_table_has_none(tmp_path: Path) -> None:
    head = "sources:\n  visits:\n    format: parquet\n    path: data\n    static: true\n"
    with pytest.raises(ConfigError, match="declared at the stream"):
        read(tmp_path, "    domains:\n      url: {values: [a]}\n", head)
