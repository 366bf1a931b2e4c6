"""What each kind of records becomes as a unit, a key, a number and a time: the table in docs/reference.md, which tests/local/test_kinds_of_input.py holds."""

OWN = "own type"
SCHEMA = "rejected: `schema=`"
KINDS: dict[str, tuple[str, str, str, str]] = {
    "pandas columns with a numpy, nullable or Arrow type; `category` of these": (OWN,) * 4,
    "pandas columns of objects or `string[python]`; `category` of these": (
        "the text of a str, int or UUID; others malformed",
        "STRING: str as it is; int, bool, Decimal, date, datetime, UUID as Spark writes them; None, NaN, NaT, NA are NULL; others malformed",
        SCHEMA,
        SCHEMA,
    ),
    "the same, declared by `schema=`": ("the declared type, read as a field of CSV",) * 4,
    "dict of columns: arrays as in pandas, lists as objects": ("see above",) * 4,
    "list or iterator of dicts: the columns that the query or `schema=` names": ("objects",) * 4,
    "polars, also lazy": (*(f"{OWN}; Object rejected",) * 2, *(OWN,) * 2),
    "Arrow tables, batches, readers, scanners, datasets and streams": (OWN,) * 4,
    "DuckDB relations": (*(f"{OWN}; BIT, UHUGEINT rejected",) * 2, *(OWN,) * 2),
    "Spark DataFrames": (OWN,) * 4,
    "CSV, JSON, Kafka": ("declared type",) * 4,
    "Parquet, ORC, Avro, Delta": (
        f"declared, else {OWN}; UUID and fixed length are BINARY",
        f"declared, else {OWN}; UUID and fixed length are BINARY",
        f"declared, else {OWN}",
        f"declared, else {OWN}",
    ),
    "`tables=`: public, so values may decide types": ("", OWN, OWN, OWN),
    "in all: a text that is not UTF-8, or holds U+FFFD": ("malformed", "U+FFFD", "", ""),
}


def table() -> str:
    """Return it as Markdown."""
    rows = [f"| {kind} | {' | '.join(cells)} |" for kind, cells in KINDS.items()]
    head = "| records | as a unit | as a key | as a number | as a time |\n|---|---|---|---|---|"
    return "\n".join([head, *rows]) + "\n"
