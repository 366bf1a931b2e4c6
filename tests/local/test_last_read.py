"""What `dpsql try` tells the owner of a secret of records that fit nothing, and nobody else."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dpsql.errors import DataError
from dpsql.jobs.cli import main
from tests.feeds import SQL, message, row, write_files

SOURCE = """\
sources:
  d:
    {{format: {form}, path: in, options: {options}, schema: "u STRING, ts TIMESTAMP, k STRING, v DOUBLE", event_time: ts,
      privacy_unit: u, max_users: 10000, max_keys: 1000{public}}}
"""
QUERY = """\
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilon=20, delta=9e-6, privacy_unit_column=u, max_rows_contributed=1)
  k, COUNT(*) AS n FROM d GROUP BY window(ts, '1 day'), k
"""
FILE = "keys/secret.last-read.json"


def workplace(folder: Path, form: str, lines: list[str], public: bool = False) -> None:
    options = "{header: true}" if form == "csv" else "{}"
    (folder / "s.yaml").write_text(
        SOURCE.format(form=form, options=options, public=", public: true" if public else "")
    )
    (folder / "q.sql").write_text(QUERY)
    (folder / "in").mkdir(exist_ok=True)
    head = ["u,ts,k,v"] if form == "csv" else []
    (folder / "in" / f"a.{form}").write_text("\n".join([*head, *lines]) + "\n")


def tried(*more: str) -> Result:
    words = "try q.sql --sources s.yaml --secret-file keys/secret --until 2024-06-01"
    return CliRunner().invoke(main, [*words.split(), *more])


def told() -> dict[str, object]:
    return dict(json.loads(Path(FILE).read_text()))


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


CASES = {
    # who writes it: a spreadsheet, a program with decimal commas, one that leaves a field out, one of American dates
    "a time in another order": ("csv", "u{i},03/01/2024 00:30,a,1.5", {"ts": 300}, 0),
    "a number that is none": ("csv", "u{i},2024-03-01 00:30:00,a,NA", {"v": 300}, 0),
    "a decimal comma": ("csv", 'u{i},2024-03-01 00:30:00,a,"1,5"', {"v": 300}, 0),
    "too few fields": ("csv", "u{i},2024-03-01 00:30:00,a", {}, 300),
    "a comma at the end": ("csv", "u{i},2024-03-01 00:30:00,a,1.5,", {}, 300),
    "two columns": ("csv", "u{i},never,a,x", {"ts": 300}, 0),
    "no JSON": ("json", "u{i};never", {}, 300),
    "a text for a number": (
        "json",
        '{{"u": "u{i}", "ts": "2024-03-01T00:30:00", "k": "a", "v": "12s"}}',
        {"v": 300},
        0,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_owner_is_told_which_column_did_not_fit(inside: Path, name: str) -> None:
    """Catches: "no key had enough people" as the only answer to a schema that fits no record."""
    form, line, columns, lines = CASES[name]
    workplace(inside, form, [line.format(i=i) for i in range(300)])
    done = tried()
    assert done.exit_code == 0, done.output
    assert (
        "No rows. If records do not fit `schema`, none counts: see keys/secret.last-read.json."
        in (done.stdout)
    )
    found = told()
    assert (found["source"], found["records"]) == ("d", 300)
    assert dict(found["dropped"])["malformed"] == 300  # type: ignore[call-overload]
    assert (found["malformed_columns"], found["malformed_lines"]) == (columns, lines)


FEED = """\
sources:
  w: {format: json, path: in, schema: "id BIGINT, owner STRING, cur STRING, bal DOUBLE", change_feed: DEBEZIUM, primary_key: id,
    sequence_by: source.lsn, privacy_unit: owner, start: 2024-03-01, max_users: 10000, max_keys: 1000}
"""


def test_the_owner_is_told_what_messages_lack(inside: Path) -> None:
    """Catches: a wrong `sequence_by`, which looks like rows that do not fit `schema`, or like no messages at all."""
    good = row(1)
    odd_time = message("c", None, good, 1, ts_ms="soon")
    lines = {
        "": ["no JSON", message("t", None, None, 1), {"before": None, "after": good}],
        "source.lsn": [message("c", None, good, lsn) for lsn in (None, "1.5", "x", {})],
        "source.ts_ms": [odd_time] * 5,
        "before": [message("d", None, None, 1)] * 6,
        "after": [message("c", good, [good], 1)] * 7,  # type: ignore[arg-type]
        "bal": [message("r", None, row(1, bal="x"), None)] * 8,
    }
    (inside / "s.yaml").write_text(FEED)
    (inside / "q.sql").write_text(SQL)
    write_files(inside / "in", [[line for part in lines.values() for line in part]])
    done = tried()
    assert done.exit_code == 0, done.output
    found = told()
    columns = {name: len(part) for name, part in lines.items() if name}
    assert (found["malformed_columns"], found["malformed_lines"]) == (columns, 3)
    assert dict(found["dropped"])["malformed"] == 33  # type: ignore[call-overload]


def test_nothing_but_the_file_tells_good_records_from_malformed_ones(inside: Path) -> None:
    """Catches: a count, or a sentence that is there only where records were dropped."""
    good = [f"u{i},2024-03-01 00:30:00,a,1.5" for i in range(300)]
    workplace(inside, "csv", good)
    tried()  # makes the secret
    first = tried()
    assert first.exit_code == 0 and dict(told()["dropped"])["malformed"] == 0  # type: ignore[call-overload]
    workplace(inside, "csv", [line.replace("1.5", "NA") for line in good])
    second = tried()
    assert dict(told()["dropped"])["malformed"] == 300  # type: ignore[call-overload]
    # The ledger has one run more
    said = [re.sub(r"\d+ runs, epsilon .*;", "", done.stderr) for done in (first, second)]
    assert said[0] == said[1]
    assert f"the owner finds it in {FILE}" in first.stderr
    assert "300" not in second.stdout.replace("-30", "")
    assert stat.S_IMODE(Path(FILE).stat().st_mode) == 0o600


def test_a_file_that_cannot_be_written_is_told_of(inside: Path) -> None:
    """Catches: a traceback after the budget is spent; an old file that is taken for the new one."""
    workplace(inside, "csv", ["u1,2024-03-01 00:30:00,a,1.5"])
    (inside / FILE).mkdir(parents=True)
    done = tried()
    assert done.exit_code == 0, done.output
    assert f"{FILE} cannot be written" in done.stderr
    assert f"the owner finds it in {FILE}" not in done.stderr


def test_a_try_that_fails_leaves_no_old_counts(
    inside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: counts of an earlier reading that are taken for those of the newest."""
    workplace(inside, "csv", ["u1,2024-03-01 00:30:00,a,1.5"])
    assert tried().exit_code == 0 and told()["records"] == 1

    def fail(*given: object, **named: object) -> None:
        raise DataError("a file is gone")

    monkeypatch.setattr("dpsql.local.feeder.try_query", fail)
    assert tried().exit_code == 2
    assert not Path(FILE).exists()


def test_counts_of_public_records_are_printed_too(inside: Path) -> None:
    workplace(inside, "csv", ["u1,never,a,1.5"], public=True)
    done = tried()
    assert "dropped: 1 malformed" in done.stderr and told()["malformed_columns"] == {"ts": 1}
