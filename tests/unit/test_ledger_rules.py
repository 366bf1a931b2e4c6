"""A cap follows what is protected: no change of names in `sources.yaml` makes it forgotten without a word that the ledger keeps."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import dpsql
from dpsql.errors import BudgetError, ConfigError, LakeError
from dpsql.lake.opening import open_run
from dpsql.lake.runs import Lake
from dpsql.privacy.budget import budgets, describe, facts
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.origin import Origin, origin_of
from dpsql.privacy.secret import Secret
from tests.unit.test_ledger import LINE

YAML = """sources:
  {name}:
    format: parquet
    path: {path}
    schema: user_id STRING, ts TIMESTAMP, page STRING, sid STRING
    event_time: ts
    privacy_unit: user_id
    {more}
"""
CAP = "cap: {epsilon: 10, delta: 1e-6, period: 1 day}"
SQL = """SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 8)
page, COUNT(*) AS views FROM {name} GROUP BY window(ts, '1 day'), page"""
SECRET = Secret(bytes(range(32)))


class Operator:
    def __init__(self, folder: Path) -> None:
        (folder / "data").mkdir()
        self.folder = folder
        self.ledger = Ledger(folder / "home" / "ledger", SECRET)
        self.count = 0

    def query(self, more: str, name: str = "s", path: str = "data") -> dpsql.Query:
        file = self.folder / "sources.yaml"
        file.write_text(YAML.format(name=name, path=path, more=more.replace("\n", "\n    ")))
        return dpsql.compile(SQL.format(name=name), dpsql.load_sources(file))

    def spends(self, more: str, name: str = "s", path: str = "data") -> None:
        query = self.query(more, name, path)
        self.count = self.count + 1
        origin = origin_of(query.source, self.ledger.own_id())
        self.ledger.append(query.line(f"{self.count:032x}", "try", origin), query.source.cap)

    def starts(self, more: str, run: str = "a", path: str = "data") -> str:
        query = self.query(more, path=path)
        return open_run(
            Lake(self.folder / "lake"), run, query, SECRET, self.ledger, query.source
        ).run_id


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    """Three runs of epsilon 6 fit into the cap, and the fourth does not."""
    made = Operator(tmp_path)
    for _ in range(3):
        made.spends(CAP)
    with pytest.raises(BudgetError, match="would exceed the cap"):
        made.spends(CAP)
    return made


def test_cap_refusals_name_its_declaration(tmp_path: Path) -> None:
    """Catches: a refusal that sends to a source which shares the cap and does not declare it."""
    blocks = (
        declared("user_id", CAP)
        + declared("user_id", "ledger: s", name="t", path="others").partition("\n")[2]
    )
    (tmp_path / "sources.yaml").write_text(blocks)
    ledger = Ledger(tmp_path / "ledger", SECRET)
    query = dpsql.compile(SQL.format(name="t"), dpsql.load_sources(tmp_path / "sources.yaml"))
    origin = origin_of(query.source, ledger.own_id())
    with pytest.raises(BudgetError, match=r"raise the cap: sources\.s\.cap"):
        for number in range(4):
            ledger.append(query.line(f"{number:032x}", "try", origin), query.source.cap)


@pytest.mark.parametrize(
    ("more", "name", "path", "says"),
    [
        (f"{CAP}\nledger: fresh", "s", "data", "`ledger: s` at sources.s.ledger"),
        (CAP, "t", "data", "`ledger: s` at sources.t.ledger"),
        ("", "t", "data", "`apart_from: s` at sources.t.apart_from"),
        (
            CAP,
            "t",
            "data/part-0.parquet",
            "source 't' would spend on ledger 't', but reads what 's' has spent on ledger 's'",
        ),
        (CAP, "t", "data/*.parquet", "two budgets for the same people"),
        (CAP, "t", "link", "two budgets for the same people"),
        (
            "",
            "s",
            "data",
            "`cap: {epsilon: 10, delta: 1e-06, period: 1 days}` at sources.s.cap; or `cap: none`",
        ),
        ("ledger: s", "t", "data", "has had a cap, and source 't' declares none any more"),
    ],
    ids=[
        "another ledger",
        "renamed",
        "a second source",
        "a part",
        "a pattern",
        "a link",
        "no cap",
        "no cap elsewhere",
    ],
)
def test_a_cap_is_not_lost_by_a_change_of_names(
    operator: Operator, more: str, name: str, path: str, says: str
) -> None:
    (operator.folder / "link").symlink_to(operator.folder / "data")
    with pytest.raises(BudgetError) as caught:
        operator.spends(more, name, path)
    assert says in str(caught.value)
    assert len(operator.ledger.lines()) == 3


def declared(privacy_unit: str, more: str = "", name: str = "s", path: str = "data") -> str:
    """The block of a source whose people are named by another column."""
    return YAML.format(name=name, path=path, more=more.replace("\n", "\n    ")).replace(
        "privacy_unit: user_id", f"privacy_unit: {privacy_unit}"
    )


def spends_as(
    operator: Operator, privacy_unit: str, more: str = "", name: str = "s", path: str = "data"
) -> None:
    file = operator.folder / "sources.yaml"
    file.write_text(declared(privacy_unit, more, name, path))
    sql = SQL.format(name=name).replace("user_id", privacy_unit.strip("[]"))
    query = dpsql.compile(sql, dpsql.load_sources(file))
    operator.count += 1
    origin = origin_of(query.source, operator.ledger.own_id())
    operator.ledger.append(query.line(f"{operator.count:032x}", "try", origin), query.source.cap)


def test_a_cap_is_of_one_unit(operator: Operator) -> None:
    """Catches: a person with 40 sessions pays 40 times what the ledger says, where another file declares that sessions are protected."""
    with pytest.raises(BudgetError) as caught:
        spends_as(operator, "sid", CAP)
    assert "source 's' protects sid, but the cap of ledger 's' is of user_id" in str(caught.value)
    assert "`ledger: s_by_sid` and `apart_from: s` at sources.s" in str(caught.value)
    assert len(operator.ledger.lines()) == 3
    spends_as(operator, "sid", f"{CAP}\nledger: s_by_sid\napart_from: s")
    assert [line.unit for line in operator.ledger.lines()][-1] == ("sid",)


def test_a_folder_around_two_units_is_of_neither(tmp_path: Path) -> None:
    """Catches: a source that looks at its oldest neighbour alone, and not at all that a cap has counted over its records."""
    operator = Operator(tmp_path)
    spends_as(operator, "sid", f"{CAP}\nledger: s", path="data/sessions")
    spends_as(operator, "user_id", f"{CAP}\nledger: s", name="t", path="data/people")
    for privacy_unit in ("sid", "user_id"):
        with pytest.raises(BudgetError, match="but the cap of ledger 's' is of"):
            spends_as(operator, privacy_unit, f"{CAP}\nledger: s", name="u", path="data")
    assert len(operator.ledger.lines()) == 2


def test_runs_that_protect_other_columns_are_no_part_of_a_persons_total(tmp_path: Path) -> None:
    operator = Operator(tmp_path)
    for privacy_unit in ("user_id", "sid", "sid"):
        spends_as(operator, privacy_unit)
    spends_as(
        operator, "sid", "ledger: s", name="t", path="elsewhere"
    )  # other records, whose sessions are people by declaration
    people, sessions = budgets(operator.ledger.lines())
    assert [line.unit for line in people.lines] == [("user_id",), ("sid",)] and len(
        sessions.lines
    ) == 3
    assert people.lines[1].source == "t"
    assert people.totals[0].epsilon < sessions.totals[0].epsilon
    assert "A user_id with 10 sid pays for each of\n  the 10" in describe(sessions)
    assert "Not in these totals" not in describe(people)
    assert (
        facts(sessions)["other_unit"] == {"columns": ["user_id"]}
        and facts(people)["other_unit"] is None
    )


def test_after_runs_of_two_units_a_cap_is_of_the_first(tmp_path: Path) -> None:
    operator = Operator(tmp_path)
    for privacy_unit in ("user_id", "sid", "sid", "sid"):
        spends_as(operator, privacy_unit)
    operator.spends(CAP)  # two of three that the cap has room for: those of sessions take none
    with pytest.raises(BudgetError, match="is of user_id"):
        spends_as(operator, "sid", CAP)
    people, sessions = budgets(operator.ledger.lines(), operator.query(CAP).sources.values())
    assert people.cap is not None and sessions.cap is None


@pytest.mark.parametrize(
    ("second", "is_read"),
    [
        ("", False),
        ("cap: none", False),
        ("ledger: s", True),
        ("apart_from: s", True),
        (f"{CAP}\nledger: s", True),
    ],
)
def test_a_second_source_of_the_same_files_shares_the_cap_or_says_apart(
    tmp_path: Path, second: str, is_read: bool
) -> None:
    """Catches: a source without a cap that answers as often as one likes beside one that has a cap."""
    (tmp_path / "data").mkdir()
    blocks = (
        declared("user_id", CAP)
        + declared("user_id", second, name="t", path="data/part.parquet").partition("\n")[2]
    )
    (tmp_path / "sources.yaml").write_text(blocks)
    if is_read:
        assert dpsql.load_sources(tmp_path / "sources.yaml")["t"].cap == (
            None if "apart" in second else dpsql.load_sources(tmp_path / "sources.yaml")["s"].cap
        )
        return
    with pytest.raises(ConfigError, match="source 't' reads what 's' reads") as caught:
        dpsql.load_sources(tmp_path / "sources.yaml")
    assert "Write `ledger: s` here" in str(caught.value)


def test_renamed_data_are_the_same_data(operator: Operator) -> None:
    (operator.folder / "data").rename(operator.folder / "moved")
    with pytest.raises(BudgetError, match="two budgets for the same people"):
        operator.spends(CAP, "t", "moved")


def test_what_is_meant_is_said_kept_and_told(operator: Operator) -> None:
    operator.spends("cap: none")
    operator.spends("")  # from there on there was none
    operator.spends("apart_from: s", "t")
    operator.spends(CAP, "t")  # said once
    operator.spends("cap: none")  # nor does the first one mind
    found = {budget.ledger: describe(budget) for budget in budgets(operator.ledger.lines())}
    assert (
        "Note: the cap was {epsilon: 10, delta: 1e-06, period: 1 days} until 20" in found["s"]
        and ", then none." in found["s"]
    )
    assert (
        "Note: by declaration apart from ledger s, which has a budget of its own for the same records."
        in found["t"]
    )


def test_a_larger_cap_is_a_decision_and_told(operator: Operator) -> None:
    operator.spends(CAP.replace("10", "40"))
    (budget,) = budgets(operator.ledger.lines())
    assert "then {epsilon: 40, delta: 1e-06, period: 1 days}" in describe(budget)


def test_lines_of_earlier_releases_have_names_only(tmp_path: Path) -> None:
    """A line without places stands for its source's name; one with places is not held against it by anything else."""
    operator = Operator(tmp_path)
    Ledger(operator.ledger.folder).append(
        replace(LINE, source="s", ledger="s", origin=Origin()), None
    )
    with pytest.raises(BudgetError, match="two budgets for the same people"):
        operator.spends("ledger: fresh")
    operator.spends("", "t")


def test_other_data_are_other_peoples(operator: Operator) -> None:
    operator.spends(CAP, "t", "elsewhere")
    operator.spends("", "u", "data2")


@pytest.mark.parametrize(
    ("more", "path", "error", "says"),
    [
        (
            f"{CAP}\nledger: fresh",
            "data",
            LakeError,
            "ledger 's' at sources.s, and it says ledger 'fresh' now",
        ),
        (CAP, "other", LakeError, "and it says path"),
        (f"{CAP}\nstart: 2026-01-01", "data", LakeError, "no start at sources.s"),
        ("", "data", BudgetError, "has had a cap"),
    ],
    ids=["ledger", "path", "start", "cap"],
)
def test_a_started_run_keeps_its_source(
    tmp_path: Path, more: str, path: str, error: type[Exception], says: str
) -> None:
    operator = Operator(tmp_path)
    run_id = operator.starts(CAP)
    with pytest.raises(error, match=says):
        operator.starts(more, path=path)
    assert (
        operator.starts(CAP) == operator.starts(CAP.replace("10", "30")) == run_id
    )  # a larger cap stops no run
    assert len(operator.ledger.lines()) == 1


def test_a_run_that_began_without_a_cap_still_counts_when_it_is_back(tmp_path: Path) -> None:
    operator = Operator(tmp_path)
    operator.starts("cap: none", "e")
    operator.spends(CAP)
    operator.spends(CAP)
    with pytest.raises(BudgetError, match="would exceed the cap"):
        operator.spends(CAP)


def test_declarations_that_contradict_one_another(tmp_path: Path) -> None:
    operator = Operator(tmp_path)
    for more, says in (
        ("apart_from: s", "names the source's own ledger"),
        ("apart_from: [a b]", "the name of a ledger or a list of them"),
        ("cap: no", "cap"),
        ("public: maybe", "true or false"),
    ):
        with pytest.raises(ConfigError, match=says):
            operator.query(more)


def test_a_moved_folder_of_the_secret_goes_on(operator: Operator) -> None:
    run_id = operator.starts("cap: none")
    shutil.move(operator.folder / "home", operator.folder / "away")
    operator.ledger = Ledger(operator.folder / "away" / "ledger", SECRET)
    assert operator.starts("cap: none") == run_id
