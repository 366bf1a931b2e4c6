"""`dpsql ask` and `dpsql.sketch`: any value, also one that was never listed, from the public table of cells and nothing else."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import Schema

import dpsql
from dpsql.errors import DataError, LakeError
from dpsql.jobs.cli import main
from dpsql.lake import delta_tables
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.runs import Lake, cells_path
from dpsql.local.feeder import Feeder, published_table
from dpsql.local.record_reader import RowReader
from dpsql.mechanisms.protocol import RunFacts
from dpsql.published.public_rows import PublicRows
from dpsql.published.rows import CELLS, cell_rows, of_cells
from dpsql.published.sketches import open_sketch
from dpsql.sources.config import Source, Sources
from dpsql.udfs.stage import Clock
from dpsql.view.plain_table import as_histogram, listing
from tests.matrix.same_rows import RUN_ID, SECRET

DAY = 86_400_000_000
START = 20_000 * DAY
HEAD = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, delta = 1e-6, sketch_width = 1024, "
EVENT = (
    HEAD
    + "privacy_level = EVENT, trigger_interval = '12 hours') COUNT_SKETCH(STRUCT(page, status)) AS pages"
)
USER = (
    HEAD
    + "privacy_unit_column = user_id, max_rows_contributed = 2, trigger_interval = '6 hours') APPROX_TOP_COUNT(page, 3) AS top"
)
TAIL = " FROM visits GROUP BY window(ts, '1 day')"
COUNTS = {"/a": 700, "/b": 300, "/rare": 1}


def frame(days: int = 2) -> pa.Table:
    """Each page so often a day, each time by somebody else."""
    pages = [page for page, count in COUNTS.items() for _ in range(count)] * days
    day = np.repeat(np.arange(days), len(pages) // days)
    number = np.arange(len(pages))
    time = pa.array(START + day * DAY + number % 80_000 * 1_000_000).cast(pa.timestamp("us", "UTC"))
    return pa.table(
        {
            "user_id": pa.array([f"u{i}" for i in number]),
            "page": pages,
            "status": pa.array([200] * len(pages)),
            "ts": time,
        }
    )


def published(text: str, folder: Path, until_us: int) -> Path:
    """A lake with the public tables of a run, and nothing private."""
    source = Source(
        name="visits",
        format="parquet",
        path=str(folder),
        event_time="ts",
        privacy_unit=("user_id",),
        start_us=START,
    )
    query = dpsql.compile(text + TAIL, Sources((source,)))
    reader = RowReader(query.plan, query.sources, SECRET.salt(RUN_ID), {})
    rows = reader.frame(frame())
    public = reader.public_groups(source)
    feeder = Feeder(
        query.mechanism.stages(query.plan, RunFacts(public)),
        SECRET.noise_key(RUN_ID, query.plan.identity),
    )
    feeder.micro_batch(rows, Clock())
    released = pa.concat_tables(feeder.tick(until_us))
    sketch = query.shape.sketch
    assert sketch is not None
    path = cells_path(Lake(folder / "lake").histogram("q"))
    path.mkdir(parents=True)
    kinds = [
        (key.name, kind.name) for key, kind in zip(query.parsed.keys, reader.key_types, strict=True)
    ]
    delta_tables.create(
        path,
        Schema.from_arrow(CELLS),
        properties=of_cells(query.published, sketch, kinds).properties,
    )
    delta_tables.append(path, cell_rows(released, query.shape.schedule, sketch), {"run": 1})
    lists = published_table(query.plan, [released], reader.key_types)
    delta_tables.create(
        Lake(folder / "lake").histogram("q"),
        Schema.from_arrow(lists.schema),
        properties=query.published.properties,
    )
    delta_tables.append(Lake(folder / "lake").histogram("q"), lists, {"run": 1})
    return folder / "lake"


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    made = {"event": (EVENT, START + 2 * DAY), "user": (USER, START + DAY + DAY // 2)}
    return {
        name: str(published(text, tmp_path_factory.mktemp(name), until))
        for name, (text, until) in made.items()
    }


def ask(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["ask", "q", *arguments])


def test_a_value_that_was_never_listed_is_answered_with_an_interval(lakes: dict[str, str]) -> None:
    """The lake has no private folder, and no secret or ledger is named."""
    done = ask("/a", "/rare", "/never", "--lake", lakes["user"], "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.output)
    rows = {row["value"]: row for row in said["rows"]}
    assert said["noise_sd"] > 0
    for page, count in ({**COUNTS, "/never": 0}).items():
        if page in rows:
            assert (
                rows[page]["low"] - 5 * said["noise_sd"]
                <= count
                <= rows[page]["high"] + 5 * said["noise_sd"]
            )
    assert rows["/a"]["count"] > 400 > abs(rows["/rare"]["count"])
    spoken = ask("/a", "--lake", lakes["user"]).output
    assert "Nothing was spent" in spoken and "true numbers can be much larger" in spoken


def test_values_come_from_stdin(lakes: dict[str, str]) -> None:
    """Catches: a list of values that has to be a file, or written as flags."""
    arguments = ["ask", "q", "/a", "--keys", "-", "--lake", lakes["user"], "--json"]
    done = CliRunner().invoke(main, arguments, input="/b\nselect\n")
    rows = json.loads(done.stdout)["rows"]
    assert [row["value"] for row in rows] == ["/a", "/b", "select"]


def test_cells_say_what_they_are(lakes: dict[str, str]) -> None:
    """Rows are for `dpsql ask`; everybody is told whom they protect, and all of them are to be had."""
    cells = f"{lakes['user']}/public/q.sketch"
    shown = CliRunner().invoke(main, ["show", cells]).output
    opened = dpsql.open(cells)
    for text in (shown, opened.explain()):
        assert (
            "everything that one user_id does in a window of 1 day: epsilon 2, delta 1e-06" in text
        )
        assert all(name in text for name in CELLS.names)
    assert "dpsql ask NAME VALUE" in shown and "dpsql ask NAME VALUE" in repr(opened)
    rows = json.loads(CliRunner().invoke(main, ["show", cells, "--json"]).output)["rows"]
    assert [row["cells"] for row in rows] == [
        list(cells) for cells in opened.rows["cells"]
    ] and len(rows) == 9


def test_from_python(lakes: dict[str, str]) -> None:
    sketch = dpsql.sketch(lakes["user"], "q", "2024-10-04")
    found = sketch.estimate(["/a", None])
    assert list(found.columns) == ["value", "count", "stderr", "low", "high"]
    assert abs(int(found["count"][0]) - COUNTS["/a"]) < 6 * sketch.noise_sd
    assert list(sketch.top(["/rare", "/b", "/a"], 2)["value"]) == ["/a", "/b"]


def test_windows_of_one_hash_key_add_up(lakes: dict[str, str]) -> None:
    """Compound values are arrays."""
    both = open_sketch(Lake(lakes["event"]), "q", START, until_us=START + 2 * DAY)
    one = open_sketch(Lake(lakes["event"]), "q", START)
    assert both.noise_sd == pytest.approx(2**0.5 * one.noise_sd)
    for sketch, days in ((one, 1), (both, 2)):
        for page, count in COUNTS.items():
            assert (
                abs(int(sketch.estimate([(page, 200)])["count"][0]) - days * count)
                < 7 * both.noise_sd
            )
    assert not np.array_equal(
        open_sketch(Lake(lakes["event"]), "q", START, trigger=1).cells, one.cells
    )
    assert ask('["/a", 200]', "--lake", lakes["event"]).exit_code == 0


def test_what_cannot_be_asked_is_said(lakes: dict[str, str]) -> None:
    for arguments, what in (
        (("/a", "--window", "2024-10-05"), "published when it closes"),  # begun, and not closed
        (("/a", "--to", "2024-10-06"), "hash key of its own"),
        (("/a", "--of", "others"), "the sketches are top"),
        (("/a", "--trigger", "7"), "not published at trigger 7"),
        ((), "name a value"),
        (("SELECT 1", "SELECT 2"), "ask one question"),
        (("SELECT COUNT(*) FROM q",), "publishes no sets of keys"),
        (("SELECT COUNT(*) FROM q", "--of", "top"), "leave them away, or the question"),
        (("/a", "--max-error", "5%"), "is of a question in SQL"),
    ):
        done = ask(*arguments, "--lake", lakes["user"])
        assert done.exit_code == 2 and what in done.output and "Traceback" not in done.output, (
            done.output
        )
    for value in ("/a", '["/a"]', '["/a", "many"]'):
        done = ask(value, "--lake", lakes["event"])
        assert (
            done.exit_code == 2 and "Traceback" not in done.output and "many" not in done.output
        ), done.output
    with pytest.raises(LakeError, match="no published sketch"):
        open_sketch(Lake(lakes["user"]), "other")
    with pytest.raises(DataError, match="2 parts"):
        open_sketch(Lake(lakes["event"]), "q").estimate(["/a"])


def test_nothing_of_an_open_window_is_there(lakes: dict[str, str]) -> None:
    """Unknown values: the second window has had two of its four triggers, and the table has neither its cells nor its hash key."""
    rows = read_rows(cells_path(Lake(lakes["user"]).histogram("q")))
    assert set(rows["window_start"].cast(pa.int64()).to_pylist()) == {START}
    assert set(rows["trigger"].to_pylist()) == {4}
    assert len(set(rows["hash_key"].to_pylist())) == 1


def test_lists_are_shown_value_by_value(lakes: dict[str, str]) -> None:
    """The newest trigger of the window that is finished, largest first; `latest` has the lists as they are published."""
    done = CliRunner().invoke(main, ["show", "q", "--lake", lakes["user"]])
    assert done.exit_code == 0, done.output
    assert (
        "does not cover what the contribution bounds leave out" in done.output
        and "true value" not in done.output
    )
    lines = [line.split() for line in done.output.splitlines() if line.startswith("2024-10-04")]
    assert [line[3] for line in lines] == ["/a", "/b"] and {line[2] for line in lines} == {"4"}
    rows = json.loads(
        CliRunner().invoke(main, ["show", "q", "--lake", lakes["user"], "--json"]).output
    )["rows"]
    assert [entry["value"] for entry in rows[0]["top"]] == ["/a", "/b"]
    assert "dpsql ask" in CliRunner().invoke(main, ["show", "q", "--lake", lakes["event"]]).output
    newest = dpsql.latest(lakes["user"], "q")
    assert len(newest) == 2 and [entry["value"] for entry in newest["top"][0]] == ["/a", "/b"]


def test_the_page_draws_lists_with_their_intervals(lakes: dict[str, str], tmp_path: Path) -> None:
    """Catches: whiskers of the noise alone, where collisions count as well; words of a histogram."""
    out = tmp_path / "q.html"
    done = CliRunner().invoke(
        main,
        [
            "view",
            "q",
            "--lake",
            lakes["user"],
            "--out",
            str(out),
            "--secret-file",
            str(tmp_path / "none"),
        ],
    )
    assert done.exit_code == 0, done.output
    text = out.read_text()
    for words in (
        "The largest values, private",
        "Top, 4 October 2024",
        "95% of noise and collisions",
        "dpsql ask",
        "/a</bdi></td>",
        "/b</bdi></td>",
        "What is beyond is left out",
    ):
        assert words in text
    assert "A private histogram" not in text and "/rare" not in text
    [entry] = [each for each in dpsql.latest(lakes["user"], "q")["top"][0] if each["value"] == "/a"]
    drawn = as_histogram(PublicRows.of_frame(dpsql.latest(lakes["user"], "q"))).frame
    half = (
        1.96
        * drawn[(drawn["value"] == "/a") & (drawn["window_start"].dt.day == 4)]["top_stderr"].iloc[
            0
        ]
    )
    assert (
        half == pytest.approx((entry["high"] - entry["low"]) / 2, rel=1e-3)
        and half > 1.96 * entry["stderr"]
    )
    nothing = CliRunner().invoke(main, ["view", "q", "--lake", lakes["event"], "--out", str(out)])
    assert nothing.exit_code == 2 and "lists none: dpsql ask q VALUE" in nothing.output


def test_windows_that_list_nothing_are_passed_over(lakes: dict[str, str]) -> None:
    """Catches: an empty table, because the newest finished window came after the end of the data."""
    frame = dpsql.latest(lakes["user"], "q")
    first = frame.sort_values("window_start").iloc[:1]
    later = [
        first.assign(
            window_start=first["window_start"] + pd.Timedelta(days=d),
            window_end=first["window_end"] + pd.Timedelta(days=d),
        )
        for d in (1, 2)
    ]
    empty = pd.concat(later).assign(top=pd.Series([[], []], dtype=frame["top"].dtype).array)
    rows = pd.concat([first, empty], ignore_index=True).assign(
        trigger_time=lambda f: f["window_end"]
    )
    rows = rows.astype({"top": frame["top"].dtype})
    shown, said = listing(PublicRows.of_frame(rows))
    assert (
        len(shown.frame) == 1
        and said == "2 newer windows list nothing."
        and shown.frame["window_start"].iloc[0] == first["window_start"].iloc[0]
    )
    shown, said = listing(PublicRows.of_frame(rows.iloc[1:]))
    assert said == "" and len(shown.frame) == 2
