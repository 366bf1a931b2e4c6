"""`dpsql init FILE`: files of other programs become a source and a first query that answers; no value of theirs is written or said."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path

import deltalake
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner, Result
from pyarrow import orc

from dpsql.jobs.cli import main
from dpsql.jobs.declaration import read_records

PEOPLE = 3000
RANDOM = random.Random(7)
FRAME = pd.DataFrame(
    {
        "Customer": [f"c{i}" for i in range(PEOPLE)],
        "Country": [("de", "fr")[i % 2] for i in range(PEOPLE)],
        "amount": [RANDOM.random() * 100 for _ in range(PEOPLE)],
        "ordered": pd.date_range("2026-01-01", periods=PEOPLE, freq="min"),
    }
)
SECRET_TEXTS = re.compile(r"\bc\d{2,}\b|\bde\b|\bfr\b")


def init(*words: str, answers: str | None = None) -> Result:
    return CliRunner().invoke(main, ["init", *words], input=answers)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _excel(path: Path) -> None:
    """Excel's CSV in Europe: a mark at the start, semicolons."""
    FRAME.to_csv(path, sep=";", index=False, encoding="utf-8-sig")


def _avro(path: Path) -> None:
    """Write an object container file by hand: the header, and no record."""
    fields = [
        {"name": "Customer", "type": ["null", "string"]},
        {"name": "Country", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "ordered", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ]
    schema = json.dumps({"type": "record", "name": "r", "fields": fields}).encode()
    length = len(schema) << 1
    size = bytes([(length & 127) | 128, (length >> 7) & 127])
    path.write_bytes(
        b"Obj\x01\x02" + bytes([22]) + b"avro.schema" + size + schema + b"\x00" + b"s" * 16
    )


FILES = {
    "orders.csv": lambda path: FRAME.to_csv(path, index=False),
    "excel.csv": _excel,
    "orders.tsv": lambda path: FRAME.to_csv(path, sep="\t", index=False),
    "orders.csv.gz": lambda path: path.write_bytes(
        gzip.compress(FRAME.to_csv(index=False).encode())
    ),
    "Orders 2026.jsonl": lambda path: FRAME.to_json(
        path, orient="records", lines=True, date_format="iso"
    ),
    "orders.parquet": lambda path: FRAME.to_parquet(path, index=False),
    "table": lambda path: deltalake.write_deltalake(str(path), pa.Table.from_pandas(FRAME)),
}


@pytest.mark.parametrize("name", FILES)
def test_a_first_number_is_right_in_two_commands(name: str) -> None:
    """Catches: a declaration that does not read its file; a query that is refused; a value in what is written."""
    FILES[name](Path(name))
    done = init(name, "--unit", "customer")
    assert done.exit_code == 0, done.output
    said = Path("conf/sources.yaml").read_text() + Path("conf/queries/first.sql").read_text()
    assert not SECRET_TEXTS.search(said + done.output)
    assert "OPTIONS (epsilon = 1)" in said
    tried = CliRunner().invoke(
        main, ["try", "conf/queries/first.sql", "--secret-file", "keys/secret", "--json"]
    )
    assert tried.exit_code == 0, tried.output
    document = json.loads(tried.stdout)
    rows = {row["country"]: row for row in document["rows"]}
    assert rows.keys() == {"de", "fr"}
    for row in rows.values():
        assert abs(row["people"] - PEOPLE / 2) < 6 * row["people_stderr"] < PEOPLE / 4
    assert document["budget"]["runs"] == document["budget"]["for_ever"] == 1
    assert document["budget"]["cap"]["epsilon"] == 4
    said = tried.stderr
    assert "of 4 in any 7 days (at the cap's delta 1e-06, not at the query's)" in said
    assert "the next run may ask for up to epsilon 1, by the policy" in said
    explained = CliRunner().invoke(main, ["explain", "conf/queries/first.sql"])
    assert "Defaults:" in explained.stdout


def test_a_first_query_has_no_key_of_one_record_each() -> None:
    """Where nobody is asked all text is STRING: a time as the key would give no row. Catches: the numbers of rows that pandas writes, as a column."""
    frame = FRAME.rename(columns={"ordered": "created_at"})[["created_at", "Customer", "Country"]]
    frame.to_csv("orders.csv", index=False)
    assert init("orders.csv", "--unit", "customer").exit_code == 0
    assert "GROUP BY `Country`" in Path("conf/queries/first.sql").read_text()
    frame.set_index(pd.Index([3] * len(frame))).to_parquet("orders.parquet")
    assert pq.read_schema("orders.parquet").names[-1] == "__index_level_0__"
    names = [column.name for column in read_records(Path("orders.parquet")).columns]
    assert names == ["created_at", "Customer", "Country"]


def test_names_and_types_come_from_the_file() -> None:
    pq.write_table(
        pa.table(
            {
                "id": pa.array([1], pa.uint64()),
                "t": pa.array([0], pa.timestamp("ns")),
                "d": pa.array([0], pa.date32()),
                "list": pa.array([[1]]),
            }
        ),
        "a.parquet",
    )
    orc.write_table(pa.table({"who": ["x"], "n": pa.array([1], pa.int32())}), "a.orc")
    _avro(Path("a.avro"))
    FRAME.head(3).to_json("a.json", orient="records", lines=True, date_format="iso")
    Path("day=2026-01-01").mkdir()
    kinds = {
        name: [(column.name, column.kind) for column in read_records(Path(name)).columns]
        for name in ("a.parquet", "a.orc", "a.avro", "a.json")
    }
    assert kinds["a.parquet"] == [("id", "DECIMAL(20, 0)"), ("t", "TIMESTAMP"), ("d", "DATE")]
    assert kinds["a.orc"] == [("who", "STRING"), ("n", "INT")]
    assert kinds["a.avro"] == [
        *(("Customer", "STRING"), ("Country", "STRING")),
        *(("amount", "DOUBLE"), ("ordered", "TIMESTAMP")),
    ]
    assert kinds["a.json"] == kinds["a.avro"]


def test_a_folder_with_days_is_one_source() -> None:
    for day in (1, 2):
        folder = Path(f"in/day=2026-01-0{day}")
        folder.mkdir(parents=True)
        FRAME.to_parquet(folder / "a.parquet", index=False)
    assert [column.name for column in read_records(Path("in")).columns] == [*FRAME.columns, "day"]


def test_types_of_text_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a guess in brackets; nothing is guessed of who is a person."""
    FRAME.to_csv("orders.csv", index=False)
    monkeypatch.setattr("dpsql.jobs.init._is_terminal", lambda: True)
    done = init("orders.csv", answers="Customer\n\n\n\nstring\n")
    assert done.exit_code == 0, done.output
    assert "Type of amount" in done.output and "[DOUBLE]" in done.output
    assert "[TIMESTAMP]" in done.output and not SECRET_TEXTS.search(done.output)
    source = yaml.safe_load(Path("conf/sources.yaml").read_text())["sources"]["orders"]
    assert source["schema"] == "`Customer` STRING, `Country` STRING, amount DOUBLE, ordered STRING"


def test_what_is_there_is_not_touched() -> None:
    FRAME.to_csv("orders.csv", index=False)
    Path("conf").mkdir()
    Path("conf/sources.yaml").write_text("sources: {}\n")
    done = init("orders.csv", "--unit", "Customer", "--name", "sales")
    assert done.exit_code == 0 and "was not changed" in done.stderr
    assert "sales" in yaml.safe_load("sources:\n" + done.stdout.split("SELECT")[0])["sources"]
    assert Path("conf/sources.yaml").read_text() == "sources: {}\n"


REFUSED = {
    "no unit": ("a.csv", b"who,n\nx,1\n", "say which column names a person, like --unit COLUMN"),
    "no header": ("a.csv", b"who,17\nx,1\n", "field 2 is a number"),
    "a time for a name": ("a.csv", b"2026-01-01 10:00:00,n\n", "field 1 is a time"),
    "an address for a name": ("a.csv", b"ann@example.org,n\n", "field 1 has an @"),
    "a name twice": ("a.csv", b"n,N\n1,2\n", "field 1 is there twice"),
    "a name that is empty": ("a.csv", b"n,,m\n1,2,3\n", "field 2 is empty"),
    "objects whose names are people": ("a.json", b'{"ann@example.org": 3}\n', "field 1 has an @"),
    "an array": ("a.json", b'[{"who": "x"}]', "write JSON lines"),
    "no object": ("a.json", b'"secret"\n', "its first line is no JSON object"),
    "UTF-16": ("a.csv", "who,n\n".encode("utf-16"), "save it as UTF-8"),
    "an empty file": ("a.csv", b"\n\n", "the file is empty"),
    "no Parquet": ("a.parquet", b"ann@example.org", "cannot be read as parquet"),
    "no Avro": ("a.avro", b"ann@example.org", "cannot be read as avro"),
    "another format": ("a.xlsx", b"PK", "its name says no format"),
}


@pytest.mark.parametrize(("name", "content", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_declared_is_refused(name: str, content: bytes, said: str) -> None:
    """Nothing is made, and no field of a first line is quoted: it may be a record."""
    Path(name).write_bytes(content)
    done = init(name)
    assert done.exit_code == 2 and said in done.stderr, done.output
    assert not Path("conf").exists()
    assert not re.search(r"example|ann@|secret|17|10:00", done.output)


def test_a_folder_of_several_schemas_is_refused() -> None:
    Path("in").mkdir()
    Path("in/a.csv").write_text("who,n\nx,1\n")
    Path("in/b.csv").write_text("n,who\n1,x\n")
    assert "have other columns" in init("in", "--unit", "who").stderr
    Path("in/b.csv").unlink()
    FRAME.to_parquet("in/c.parquet")
    done = init("in", "--unit", "who")
    assert done.exit_code == 2 and "files of csv and parquet" in done.stderr
    assert "no such file" in init("nowhere", "--unit", "who").stderr
    assert "did you mean who?" in init("in/a.csv", "--unit", "whoo").stderr


def test_proposed_types_read_their_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: Enter at every question, after which all records are malformed and epsilon is spent."""
    monkeypatch.setattr("dpsql.jobs.init._is_terminal", lambda: True)
    row = {
        "who": "u",
        "zip": "10001",
        "year": "2024",
        "ok": "true",
        "n": 5,
        "part": 0.5,
        "yes": True,
    }
    row |= {"day": "2026-01-31", "ts": "2026-01-31T10:00:00", "tags": ["a"], "in": {"a": 1}}
    lines = [
        json.dumps(row | {"who": f"u{i}"} | ({"late": 1} if i > 350 else {})) for i in range(400)
    ]
    Path("a.json").write_text("\n".join(lines))
    kinds = {column.name: column.kind for column in read_records(Path("a.json")).columns}
    assert kinds == {
        **dict.fromkeys(("who", "zip", "year", "ok", "tags", "in"), "STRING"),
        **{"n": "BIGINT", "part": "DOUBLE", "yes": "BOOLEAN", "day": "DATE", "ts": "TIMESTAMP"},
        "late": "BIGINT",
    }
    assert init("a.json", answers="who\n" + "\n" * len(kinds)).exit_code == 0
    tried = CliRunner().invoke(
        main, ["try", "conf/queries/first.sql", "--secret-file", "keys/secret"]
    )
    assert tried.exit_code == 0 and "No rows" not in tried.output, tried.output
    last_read = json.loads(next(Path("keys").rglob("*last*")).read_text())
    assert '"malformed": 0' in json.dumps(last_read) and "400" in json.dumps(last_read)


def test_types_that_fit_nothing_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: a DATE or DOUBLE of other countries that is taken without a word."""
    monkeypatch.setattr("dpsql.jobs.init._is_terminal", lambda: True)
    lines = [f"u{i};09.06.2023;1.423,98;{'x' if i % 9 else 7}" for i in range(90)]
    Path("a.csv").write_text("\n".join(["who;day;amount;mixed", *lines]))
    answers = ["who", "", "date", "string", "double", "", "bigint"]
    done = init("a.csv", answers="\n".join([*answers, ""]))
    assert done.exit_code == 0, done.output
    for said in (
        "day: 90 of the first 90 values cannot be read as DATE",
        "amount: 90 of",
        "mixed: 80",
    ):
        assert said in done.stderr
    source = yaml.safe_load(Path("conf/sources.yaml").read_text())["sources"]["a"]
    assert source["schema"] == "who STRING, day STRING, amount STRING, mixed BIGINT"


def test_nested_columns_are_named() -> None:
    """Catches: `has no column`, of a column that is there."""
    pq.write_table(pa.table({"user": [{"id": 1}], "page": ["a"]}), "a.parquet")
    done = init("a.parquet", "--unit", "page")
    assert done.exit_code == 0 and "nested columns are left out: user" in done.stderr
    done = init("a.parquet", "--unit", "user")
    assert done.exit_code == 2 and "column `user` is nested" in done.stderr
