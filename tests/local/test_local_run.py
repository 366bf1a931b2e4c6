"""`dpsql.run_local` is a run: a ledger line before anything is computed, a cap that holds, and one input for one run id."""

import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import dpsql
from dpsql.errors import BudgetError, DataError, LakeError
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret
from dpsql.sources.config import Cap, Sources
from tests.local.conftest import DAY, HOUR, RUN, SQL, Compile, visits

UNTIL = DAY + 24 * HOUR
JOIN = (
    SQL.replace("FROM visits", "FROM visits LEFT JOIN pages USING (page)")
    .replace("page, COUNT", "topic, COUNT")
    .replace("'), page", "'), topic")
)


def test_every_run_has_its_line_and_a_repeated_one_spends_nothing(
    compile_on: Compile, tmp_path: Path
) -> None:
    secret = Secret.load(tmp_path / "home" / "secret")
    ledger = Ledger(tmp_path / "home" / "ledger")
    query = compile_on()
    first = dpsql.run_local(query, visits(), secret, RUN, until_us=UNTIL)
    again = dpsql.run_local(query, visits().to_pandas(), secret, RUN, until_us=UNTIL)
    assert first.equals(again) and len(first) > 20
    assert [(line.kind, line.run_id, line.query_identity) for line in ledger.lines()] == [
        ("local", RUN, query.plan.identity)
    ]
    for _ in range(2):
        dpsql.run_local(query, visits(), secret, until_us=UNTIL)
    assert len({line.run_id for line in ledger.lines()}) == 3


def test_a_frame_that_does_not_fit_spends_nothing(compile_on: Compile, tmp_path: Path) -> None:
    secret = Secret.load(tmp_path / "home" / "secret")
    query = compile_on()
    frame = visits().to_pandas()
    for wrong, says in (
        (frame.drop(columns="page"), "the records have no column `page`"),
        (
            frame.assign(ts=1),
            r"not TIMESTAMP: make it one, like pd.to_datetime\(frame\['ts'\], utc=True\)",
        ),
        ("visits.csv", "name of a file"),
    ):
        with pytest.raises(DataError, match=says):
            dpsql.run_local(query, wrong, secret, until_us=UNTIL)
    assert Ledger.beside(tmp_path / "home" / "secret").lines() == ()


def test_a_query_says_what_it_is(compile_on: Compile) -> None:
    query = compile_on()
    assert repr(query).startswith("<Query on visits: epsilon 6, delta ") and len(repr(query)) < 160
    assert query._repr_html_().startswith("<pre style='font-family: monospace'>In short\n")


def test_one_run_id_never_sees_two_inputs(
    compile_on: Compile, secret: Secret, tmp_path: Path
) -> None:
    """Other records, another order, another static table, another query, a run id of another kind of run."""
    pq.write_table(
        pa.table(
            {
                "page": [f"/p{i}" for i in range(12)],
                "topic": ["a"] * 12,
                "rank": pa.array(range(12), pa.int32()),
            }
        ),
        tmp_path / "pages",
    )
    query = compile_on(JOIN)
    dpsql.run_local(query, visits(), secret, RUN, until_us=UNTIL)
    for other in (visits().slice(1), visits().take(list(range(3999, -1, -1))), visits(users=299)):
        with pytest.raises(LakeError, match=rf"run {RUN} has seen other records.*exact difference"):
            dpsql.run_local(query, other, secret, RUN, until_us=UNTIL)
    pq.write_table(
        pa.table({"page": ["/p1"], "topic": ["a"], "rank": pa.array([1], pa.int32())}),
        tmp_path / "pages",
    )
    with pytest.raises(LakeError, match="has seen other records"):
        dpsql.run_local(query, visits(), secret, RUN, until_us=UNTIL)
    with pytest.raises(LakeError, match="belongs to another query"):
        dpsql.run_local(compile_on(), visits(), secret, RUN, until_us=UNTIL)
    ledger = Ledger.beside(tmp_path / "secrets" / "secret")
    dpsql.run_local(compile_on(), visits(), secret, until_us=UNTIL)
    fresh = ledger.lines()[-1].run_id
    with pytest.raises(
        LakeError, match="was not given a run_id"
    ):  # a fresh run's id, read in the ledger
        dpsql.run_local(compile_on(), visits(), secret, fresh, until_us=UNTIL)
    assert len(ledger.lines()) == 2
    for bad in ("", "abc", "g" * 32, RUN + "\n"):
        with pytest.raises(LakeError, match="32 hexadecimal digits"):
            dpsql.run_local(query, visits(), secret, bad, until_us=UNTIL)


def test_a_cap_holds_for_local_runs_and_without_a_ledger_there_is_no_run(
    compile_on: Compile, secret: Secret
) -> None:
    query = compile_on()
    query = replace(
        query, sources=Sources((replace(query.source, cap=Cap(8.0, 1e-8, 86_400_000_000)),))
    )
    dpsql.run_local(query, visits(), secret, RUN, until_us=UNTIL)
    with pytest.raises(BudgetError, match=r"would exceed the cap.*raise the cap"):
        dpsql.run_local(query, visits(), secret, until_us=UNTIL)
    dpsql.run_local(query, visits(), secret, RUN, until_us=UNTIL)
    with pytest.raises(BudgetError, match=r"no file, so it has no ledger.*ledger=Ledger"):
        dpsql.run_local(query, visits(), Secret(bytes(32)), until_us=UNTIL)


NO_KEY = SQL.replace("page, COUNT(*)", "COUNT(*)").replace("'1 day'), page", "'1 day')")
LISTED = SQL.replace(
    "max_rows_contributed", "public_groups = (SELECT page FROM pages), max_rows_contributed"
)


def listing(folder: Path, pages: list[str]) -> None:
    """The public table."""
    pq.write_table(
        pa.table(
            {
                "page": pages,
                "topic": ["a"] * len(pages),
                "rank": pa.array(range(len(pages)), pa.int32()),
            }
        ),
        folder / "pages",
    )


def test_one_run_id_never_sees_two_lists_of_public_groups(
    compile_on: Compile, secret: Secret, tmp_path: Path
) -> None:
    """With a shorter list a unit's other records are bounded: the difference of two histograms would be exact."""
    query = compile_on(LISTED, start_us=DAY)
    listing(tmp_path, ["/p1", "/p2"])
    first = dpsql.run_local(query, visits(), secret, RUN, until_us=UNTIL)
    for pages in (["/p1"], ["/p1", "/p2", "/p3"]):
        listing(tmp_path, pages)
        with pytest.raises(LakeError, match=r"another list of public groups.*exact difference"):
            dpsql.run_local(query, visits(), secret, RUN, until_us=UNTIL)
    listing(tmp_path, ["/p2", "/p1", "/p2"])  # the same list in another order
    assert dpsql.run_local(query, visits(), secret, RUN, until_us=UNTIL).equals(first)
    with pytest.raises(LakeError, match="another start of the stream"):
        dpsql.run_local(
            compile_on(LISTED, start_us=DAY - 24 * HOUR), visits(), secret, RUN, until_us=UNTIL
        )


def test_one_run_id_never_sees_two_starts_of_the_stream(
    compile_on: Compile, secret: Secret
) -> None:
    sql = NO_KEY.replace("epsilon", "contribution_period = STREAM, epsilon")
    first = dpsql.run_local(
        compile_on(sql, start_us=DAY - 24 * HOUR), visits(), secret, RUN, until_us=UNTIL
    )
    with pytest.raises(LakeError, match="another start of the stream"):
        dpsql.run_local(compile_on(sql, start_us=DAY), visits(), secret, RUN, until_us=UNTIL)
    same_window = dpsql.run_local(
        compile_on(sql, start_us=DAY - 20 * HOUR), visits(), secret, RUN, until_us=UNTIL
    )
    assert same_window.equals(first)


def test_one_run_id_never_sees_two_schemas(compile_on: Compile, secret: Secret) -> None:
    frame = visits().append_column("n", pa.array([7] * 4000, pa.int32()))
    sql = SQL.replace("page, COUNT", "n, COUNT").replace("'1 day'), page", "'1 day'), n")
    schema = "user_id STRING, ts TIMESTAMP, seconds DOUBLE"
    dpsql.run_local(compile_on(sql, f"{schema}, n INT"), frame, secret, RUN, until_us=UNTIL)
    for other in ("BIGINT", "STRING", "DECIMAL(10, 0)"):
        with pytest.raises((LakeError, DataError)):
            dpsql.run_local(
                compile_on(sql, f"{schema}, n {other}"), frame, secret, RUN, until_us=UNTIL
            )
    with pytest.raises(LakeError, match="other types"):
        dpsql.run_local(compile_on(sql, f"{schema}, n BIGINT"), frame, secret, RUN, until_us=UNTIL)


def test_a_later_until_adds_triggers_and_changes_none(compile_on: Compile, secret: Secret) -> None:
    """Records of a time to come are dropped or not, depending on `until_us`; they cannot reach a trigger before it."""
    frame = visits()
    for until, later in (
        (DAY + 6 * HOUR, DAY + 12 * HOUR),
        (DAY + 12 * HOUR, UNTIL),
        (UNTIL, UNTIL + 999 * HOUR),
    ):
        before = dpsql.run_local(compile_on(), frame, secret, RUN, until_us=until)
        after = dpsql.run_local(compile_on(), frame, secret, RUN, until_us=later)
        due = after["trigger_time"].astype("datetime64[us, UTC]").astype("int64") <= until
        assert len(before) and after[due].reset_index(drop=True).equals(before)
    far = pa.Table.from_pandas(
        frame.to_pandas().assign(ts=lambda rows: rows["ts"] + pd.Timedelta(days=70_000)),
        preserve_index=False,
    )
    mixed = pa.concat_tables([frame, far.cast(frame.schema)])
    run_id = RUN[:-1] + "2"
    before = dpsql.run_local(compile_on(), mixed, secret, run_id, until_us=UNTIL)
    after = dpsql.run_local(compile_on(), mixed, secret, run_id, until_us=DAY + 75_000 * 24 * HOUR)
    assert len(after) > len(before) and after[: len(before)].equals(before)


@pytest.mark.parametrize("way", ["link", "copied secret", "ledger", "copied folder"])
def test_a_run_id_in_another_ledger_has_other_noise_or_is_refused(
    compile_on: Compile, tmp_path: Path, way: str
) -> None:
    """Two inputs under one run id differ exactly by what the second one lacks, if the noise is the same: links, copies, `ledger=`."""
    query = compile_on()
    frame = visits()
    less = frame.filter(pc.not_equal(frame["user_id"], "u0"))
    first = Secret.load(tmp_path / "a" / "secret")
    mine = dpsql.run_local(query, frame, first, RUN, until_us=UNTIL)
    if way == "link":
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "secret").symlink_to(tmp_path / "a" / "secret")
    elif way == "copied folder":
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    elif way == "copied secret":
        (tmp_path / "b").mkdir()
        shutil.copy(tmp_path / "a" / "secret", tmp_path / "b" / "secret")
    if way in ("link", "copied folder"):
        with pytest.raises((LakeError, BudgetError), match=r"has seen other records|is a copy of"):
            dpsql.run_local(
                query, less, Secret.load(tmp_path / "b" / "secret"), RUN, until_us=UNTIL
            )
        return
    ledger = Ledger(tmp_path / "c" / "ledger") if way == "ledger" else None
    second = first if way == "ledger" else Secret.load(tmp_path / "b" / "secret")
    theirs = dpsql.run_local(query, less, second, RUN, until_us=UNTIL, ledger=ledger)
    both = mine.merge(theirs, on=["window_start", "trigger", "page"])
    shared = (both["views_x"] - both["views_y"]).abs()
    assert (
        len(both) > 20 and shared.gt(2).mean() > 0.5
    )  # noise, where the exact difference is u0's: 13 records of 4000
    spread = float(
        (both["time_spent_x"] - both["time_spent_y"]).std() / both["time_spent_stderr_x"].mean()
    )
    assert 0.5 < spread < 3, "two independent noises"
