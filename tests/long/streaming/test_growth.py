"""No expression makes a text longer than LONGEST on Spark, nested five deep."""

from pyspark.sql import SparkSession

from tests.streaming.test_growth import session, too_long

__all__ = ["session"]


def test_nothing_grows_beyond_the_limit_however_it_is_nested(session: SparkSession) -> None:
    """Catches: what grows at each level of a query, and passes the limit at none of the first two."""
    assert too_long(session, levels=5) == {}
