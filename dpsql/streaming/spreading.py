"""One bucket per partition: Spark groups by a label whose hash is the bucket's own partition.

Spark gives a group to the partition `hash(label) mod partitions`, and there are as many partitions as buckets. With the buckets' own numbers as
labels those hashes collide: of four buckets three would fall into one partition, of two both, and cores would idle.
"""

from __future__ import annotations

import functools

from pyspark.sql import DataFrame, GroupedData

LABEL = "label"
_WORD = (1 << 32) - 1


def spread(frame: DataFrame, buckets: int) -> GroupedData:
    """A frame with a column `bucket` (0 to buckets - 1), grouped by the labels of the buckets."""
    listed = ", ".join(map(str, labels(buckets)))
    return (
        frame.selectExpr(f"element_at(array({listed}), bucket + 1) AS {LABEL}", "*")
        .drop("bucket")
        .groupBy(LABEL)
    )


@functools.cache
def labels(buckets: int) -> tuple[int, ...]:
    """Bucket -> the smallest number from 0 whose partition, of as many as there are buckets, is the bucket."""
    found: dict[int, int] = {}
    label = 0
    while len(found) < buckets:
        found.setdefault(bucket_of(label, buckets), label)
        label += 1
    return tuple(found[bucket] for bucket in range(buckets))


def bucket_of(label: int, buckets: int) -> int:
    """The bucket that a label stands for: Spark's `pmod(hash(label), buckets)` of an INT, MurmurHash3 (x86, 32 bits) with seed 42."""
    word = _rotated(label * 0xCC9E2D51 & _WORD, 15) * 0x1B873593 & _WORD
    hashed = _rotated(42 ^ word, 13) * 5 + 0xE6546B64 & _WORD
    hashed ^= 4
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & _WORD
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & _WORD
    hashed ^= hashed >> 16
    return (hashed - (hashed >> 31 << 32)) % buckets


def _rotated(word: int, by: int) -> int:
    return (word << by | word >> 32 - by) & _WORD
