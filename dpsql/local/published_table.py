"""What the local engine has released, in the form of the public table."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dpsql.local.spark_types import SparkType
from dpsql.mechanisms import registry
from dpsql.mechanisms.protocol import Plan
from dpsql.published.rows import published_rows


def published_table(
    plan: Plan, released: Sequence[pa.Table], key_types: Sequence[SparkType]
) -> pa.Table:
    """Return the histogram of all released rows, sorted by (window_start, trigger, key bytes).

    Args:
        plan: the plan.
        released: tables of the release stage, of any buckets and ticks.
        key_types: the Spark type of each key; none if no input was read at all: then there are no rows, and keys are strings.
    """
    shape = registry.shape(plan)
    return published_rows(
        plan.query,
        shape.schedule,
        shape.columns,
        pa.concat_tables(released),
        arrow_types(plan, key_types),
    )


def arrow_types(plan: Plan, key_types: Sequence[SparkType]) -> list[pa.DataType]:
    """Return the types of the key columns."""
    return [kind.arrow for kind in key_types or [SparkType("string")] * len(plan.query.keys)]
