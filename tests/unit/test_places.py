"""What a source reads is told by where it is: links, folders around it, topics, tables; and started runs are held to their declaration."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dpsql.errors import LakeError
from dpsql.privacy.declaration import check_declaration, declaration
from dpsql.sources.config import Source
from dpsql.sources.places import FIRST_FILES, is_own_input, overlap, places

KAFKA = Source(
    "k", "kafka", options=(("kafka.bootstrap.servers", "a:1"), ("subscribe", "visits, other"))
)


def on(path: object, **settings: object) -> Source:
    return replace(
        Source(
            "s",
            "parquet",
            str(path),
            schema="u STRING, ts TIMESTAMP",
            privacy_unit=("u",),
            event_time="ts",
        ),
        **settings,
    )


def same(one: Source, two: Source) -> bool:
    assert overlap(places(one), places(two)) == overlap(places(two), places(one))
    return overlap(places(one), places(two))


def test_one_folder_under_many_names(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.parquet").touch()
    (tmp_path / "link").symlink_to(data)
    (tmp_path / "other").mkdir()
    mine = on(data)
    within = (data / "a.parquet", data / "*.parquet", data / "day={1,2}")
    for path in (data, f"{data}/", f"file://{data}", tmp_path / "link", *within, tmp_path):
        assert same(mine, on(path)), path
    for path in (tmp_path / "other", f"{data}2", tmp_path / "none", "s3a://bucket/data"):
        assert not same(mine, on(path)), path
    was = places(mine)
    data.rename(tmp_path / "renamed")
    assert overlap(was, places(on(tmp_path / "renamed")))


def test_a_folder_of_links_is_the_same_place(tmp_path: Path) -> None:
    """Catches: two budgets for the records of one folder, by links to its files under other names."""
    data = tmp_path / "data"
    (data / "day=1").mkdir(parents=True)
    for number in range(FIRST_FILES + 5):
        (data / "day=1" / f"part-{number:02}.parquet").write_text(str(number))
    (data / "_delta_log").mkdir()
    (data / "_delta_log" / "0.json").touch()
    first = data / "day=1" / "part-00.parquet"
    last = data / "day=1" / f"part-{FIRST_FILES + 4}.parquet"
    links = {
        "hard": first,
        "one.parquet": first,
        "soft": last,
        "folder": data / "day=1",
        "copy": None,
    }
    for name, target in links.items():
        place = tmp_path / "links" / name
        place.parent.mkdir(exist_ok=True)
        if name == "one.parquet":
            os.link(first, place)
            continue
        place.mkdir()
        if name == "hard":
            os.link(target, place / "x")
        elif target:
            (place / "x").symlink_to(target)
        else:
            shutil.copy2(first, place)
    assert [name for name in links if same(on(data), on(tmp_path / "links" / name))] == [
        "hard",
        "one.parquet",
        "soft",
        "folder",
    ]
    assert not same(on(tmp_path / "links" / "copy"), on(tmp_path / "links" / "hard"))
    before = places(on(data))
    assert len(before) == FIRST_FILES + 2
    os.utime(first, ns=(1, 1))  # as if its number had gone to another file
    assert not overlap(before, places(on(tmp_path / "links" / "hard")))


def test_topics_tables_buckets_and_other_readers() -> None:
    def kafka(name: str, value: str, server: str = "b:1") -> Source:
        return replace(KAFKA, options=(("kafka.bootstrap.servers", server), (name, value)))

    patterns = [("subscribePattern", "vis.*"), ("subscribePattern", "(?<x>")]
    for name, value in (("subscribe", "visits"), *patterns, ("assign", '{"other": [0]}')):
        assert same(KAFKA, kafka(name, value)), value
    for name, value in (
        ("subscribe", "clicks"),
        ("subscribePattern", "cl.*"),
        ("assign", '{"clicks": [0]}'),
    ):
        assert not same(KAFKA, kafka(name, value)), value
    tables = [
        Source("t", "table", table=name)
        for name in ("shop.visits", "spark_catalog.shop.visits", "VISITS", "shop.clicks")
    ]
    assert [same(tables[0], other) for other in tables] == [True, True, True, False]
    assert same(on("s3a://bucket/data"), on("s3://bucket/data/")) and same(
        on("s3a://b/data"), on("s3a://b/data/day")
    )
    assert not same(on("s3a://b/data"), on("s3a://b/data2"))
    reader = Source("j", "jdbc", options=(("url", "jdbc:x;password=hunter2"),))
    assert same(reader, reader) and not same(reader, replace(reader, options=(("url", "y"),)))
    assert "hunter2" not in " ".join(places(reader))


def test_the_own_input_is_known_under_any_name(tmp_path: Path) -> None:
    data = tmp_path / "data" / "visits"
    data.mkdir(parents=True)
    for name in ("a", "b"):
        (data / name).write_text(name)
    (tmp_path / "link").symlink_to(data / "a")
    (tmp_path / "links").mkdir()
    os.link(data / "b", tmp_path / "links" / "sample")
    (tmp_path / "links" / "mine").touch()
    (tmp_path / "copy").write_text("b")
    source = on(data)
    for given in (
        data,
        data / "a",
        tmp_path / "link",
        tmp_path / "links",
        tmp_path / "links" / "sample",
        tmp_path,
    ):
        assert is_own_input(source, [tmp_path / "copy", given]) == given
    assert (
        is_own_input(source, [tmp_path / "copy", tmp_path / "links" / "mine"]) is None
    )  # a copy cannot be known
    assert is_own_input(KAFKA, [tmp_path / "copy"]) is None
    assert (
        is_own_input(on(data / "a*"), [data / "b"]) == data / "b"
    )  # a pattern stands for its folder


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"ledger": "fresh"},
            "started with ledger 's' at sources.s, and it says ledger 'fresh' now",
        ),
        (
            {"path": "/other"},
            "started with path '/data' at sources.s, and it says path '/other' now",
        ),
        ({"format": "json"}, "format 'parquet'"),
        ({"start_us": 5}, "no start at sources.s, and it says start '5 us'"),
        ({"schema": "u STRING, ts TIMESTAMP_NTZ"}, "schema 'u string, ts timestamp'"),
        ({"schema": "ts TIMESTAMP, u STRING"}, "it says schema 'ts timestamp, u string'"),
        ({"schema": "u STRING"}, "schema"),
        ({"schema": None}, "no schema"),
        ({"value_format": "json"}, "value_format"),
        ({"options": (("subscribe", "other"),)}, "options.subscribe"),
        (
            {"options": (("header", "true"),)},
            "options of the reader 'none' at sources.s, and it says options of the reader 'header: true'",
        ),
    ],
)
def test_a_started_run_is_held_to_its_declaration(change: dict[str, object], says: str) -> None:
    source = on("/data")
    known = declaration(source)
    check_declaration(known, source, "views")
    with pytest.raises(
        LakeError, match=r"one run sees one input. Put the old setting back, or .*another --name"
    ) as caught:
        check_declaration(known, replace(source, **change), "views")
    assert says in str(caught.value)


def test_what_may_change_while_a_run_goes_on() -> None:
    known = declaration(on("/data", schema="u STRING, d DECIMAL(5, 2)"))
    for schema in ("u string,d decimal(5, 2)", "u STRING, d DECIMAL(5, 2), more INT"):
        check_declaration(
            known,
            on("/data", schema=schema, max_malformed=7, options=(("maxFilesPerTrigger", "3"),)),
            "views",
        )
    with pytest.raises(LakeError):
        check_declaration(known, on("/data", schema="u STRING, d DECIMAL(5, 23)"), "views")


def test_options_of_the_reader_are_kept_without_passwords_and_need_not_be_known() -> None:
    given = on(
        "/data",
        format="csv",
        options=(
            ("sep", ";"),
            ("HEADER", "true"),
            ("fs.s3a.secret.key", "x"),
            ("maxFilesPerTrigger", "2"),
        ),
    )
    known = declaration(given)
    assert known["options of the reader"] == "header: true, sep: ;"
    check_declaration(
        known,
        replace(given, options=(("Sep", ";"), ("header", "true"), ("fs.s3a.secret.key", "y"))),
        "views",
    )
    with pytest.raises(LakeError, match=r"'header: true, sep: ;' at .* 'header: true'"):
        check_declaration(known, replace(given, options=(("header", "true"),)), "views")
    assert not any(
        name.startswith("options")
        for name in declaration(KAFKA)
        if name not in ("options.subscribe",)
    )


@pytest.mark.parametrize(
    "spelled",
    [
        "s3://b/v",
        "s3a://b/v/",
        "S3://b//v",
        "s3n://b/v/*.parquet",
        "s3a://b/{v}",
        "s3://b/v/2024/x.parquet",
        "s3://b/*/x.parquet",
    ],
)
def test_one_place_in_a_bucket_is_found_under_every_spelling(spelled: str) -> None:
    def reads(path: str) -> tuple[str, ...]:
        return places(
            Source(
                "visits",
                "parquet",
                path,
                schema="user_id STRING, ts TIMESTAMP",
                event_time="ts",
                privacy_unit=("user_id",),
            )
        )

    assert overlap(reads("s3a://b/v"), reads(spelled))
    assert not overlap(reads("s3a://b/other"), reads("s3://b/v/*")) and not overlap(
        reads("s3a://c/v"), reads(spelled)
    )
