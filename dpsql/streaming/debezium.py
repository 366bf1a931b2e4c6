"""Messages of Debezium as images: the columns of the row, and beside them what a Delta change feed has. What cannot be read is marked as
malformed; no message ends a job. The local engine reads them in the same way (`dpsql.local.debezium`).
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from dpsql.sources.change_feed import BESIDE, CHANGE, IMAGES, MESSAGE, POSITION, SOURCE_TIME, TIME
from dpsql.sources.config import Source
from dpsql.streaming import text_times
from dpsql.streaming.text_times import CORRUPT

OPTIONS = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
MESSAGE_SCHEMA = ", ".join(f"{name} STRING" for name in (*MESSAGE, CORRUPT))
"""What is nested stays text here: it is read by the schema of the source."""


def parsed(messages: DataFrame, source: Source) -> DataFrame:
    """The images in the column `value`, a message in each row, and CORRUPT beside them. A blank message is no record."""
    whole = messages.selectExpr("cast(value AS STRING) AS value").where("value RLIKE '\\\\S'")
    outer = whole.select(_object("value", MESSAGE_SCHEMA).alias("m"))
    fields = [
        f"CASE WHEN m.payload IS NULL THEN m.{name} ELSE p.{name} END AS {name}"
        for name in MESSAGE[:-1]
    ]
    bad = f"m.{CORRUPT} IS NOT NULL OR m IS NULL OR (m.payload IS NOT NULL AND (p IS NULL OR p.{CORRUPT} IS NOT NULL))"
    inner = outer.select("m", _object("m.payload", MESSAGE_SCHEMA).alias("p")).selectExpr(
        *fields, f"{bad} AS bad"
    )
    place = str(source.sequence_by).split(".")[1]
    told = ", ".join(f"`{name}` BIGINT" for name in dict.fromkeys((place, SOURCE_TIME)))
    read = inner.select(
        "before", "after", "op", "bad", _object("source", f"{told}, {CORRUPT} STRING").alias("s")
    )
    known = f"NOT bad AND s.{CORRUPT} IS NULL AND s.`{place}` IS NOT NULL"
    images = read.selectExpr(
        f"inline({_images(known)})", f"s.`{place}` AS {POSITION}", f"{_time()} AS {TIME}"
    )
    schema = text_times.declared(messages.sparkSession, source)
    shape = text_times.as_read(schema, source).add(CORRUPT, "string")
    rows = images.select(*BESIDE, _object("line", shape).alias("v"))
    of_row = [f"v.`{field.name.replace('`', '``')}`" for field in schema]
    corrupt = f"CASE WHEN v IS NULL OR v.{CORRUPT} IS NOT NULL THEN '' END AS {CORRUPT}"
    return text_times.typed(rows.selectExpr(*of_row, *BESIDE, corrupt), schema)


def _object(text: str, shape: T.StructType | str) -> Column:
    """A JSON object; NULL for any other text."""
    return F.from_json(
        F.expr(f"CASE WHEN {text} RLIKE '^\\\\s*[{{]' THEN {text} END"), shape, OPTIONS
    )


def _images(known: str) -> str:
    """Of every kind of message; of one that is none of them an image that says nothing, which is malformed."""
    said = []
    for op, images in IMAGES.items():
        listed = ", ".join(
            f"struct('{change}' AS {CHANGE}, {field} AS line)" for change, field in images
        )
        said.append(f"WHEN {known} AND op = '{op}' THEN array({listed})")
    return f"CASE {' '.join(said)} ELSE array(struct(cast(NULL AS STRING) AS {CHANGE}, cast(NULL AS STRING) AS line)) END"


def _time() -> str:
    """NULL for a time that no timestamp can hold."""
    return f"timestamp_micros(try_multiply(s.`{SOURCE_TIME}`, 1000L))"
