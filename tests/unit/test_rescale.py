"""Other numbers of buckets: what a bucket has closed, it and its successors have closed."""

import pyarrow as pa

from dpsql.lake.rescale import recut
from dpsql.udfs.stage import CLOSED
from dpsql.udfs.state_table import StateTable


def test_the_newest_closed_time_holds_for_all_buckets_also_for_those_without_rows() -> None:
    """Catches: a bucket that would close a trigger again, and publish it with other noise or other rows."""
    parts = {i: pa.table({"key": pa.array(keys, pa.int64())}) for i, keys in enumerate([[4], []])}
    state = {
        i: {"groups": part.replace_schema_metadata({CLOSED: str(70 - 30 * i)})}
        for i, part in parts.items()
    }
    cut = recut(state, 3, {"groups": StateTable(("key",), "key")})
    assert {bucket: of["groups"]["key"].to_pylist() for bucket, of in cut.items()} == {
        0: [],
        1: [4],
        2: [],
    }
    assert {of["groups"].schema.metadata[CLOSED] for of in cut.values()} == {b"70"}
