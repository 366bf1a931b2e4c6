"""A topic that is read on, has lost messages, or was made anew; a broker that is away."""

from __future__ import annotations

from typing import Any

import pytest

from dpsql.errors import DataError
from tests.deployment.kafka_broker import Broker
from tests.streaming.test_kafka import DAY, SQL, START, as_json, broker, declared, rows_of

__all__ = ["broker"]


def test_a_later_start_goes_on_from_the_offsets_and_never_past_a_gap(case: Any, write: Any, visits: Any, broker: Broker) -> None:
    first, second = visits(days=1), visits(days=1, first_day=1)
    write(first)
    files = case(SQL)
    files.go(START + DAY)
    write(second, first=1)
    files.go(START + 2 * DAY)
    broker.make_topic("goes_on", 2)
    broker.send("goes_on", [(i % 2, as_json(row)) for i, row in enumerate(rows_of(first))])
    kafka = case(SQL, **declared(broker, "goes_on"))
    kafka.go(START + DAY)
    broker.expire("goes_on", 0, 100)  # read already: no loss
    broker.send("goes_on", [(i % 2, as_json(row)) for i, row in enumerate(rows_of(second))])
    assert kafka.go(START + 2 * DAY).records == 360
    assert kafka.histogram() == files.histogram()
    before = kafka.histogram()
    broker.send("goes_on", [(0, as_json(row)) for row in rows_of(visits(days=1, first_day=2))])
    broker.expire("goes_on", 0, 400)
    for _ in range(2):
        with pytest.raises(DataError, match=r"source 'visits': the broker no longer has messages that this run has not read") as told:
            kafka.go(START + 3 * DAY)
        assert "\n" not in str(told.value)
    assert kafka.histogram() == before


def test_a_topic_made_anew_or_a_broker_that_is_away_is_told(case: Any, visits: Any, broker: Broker) -> None:
    broker.make_topic("anew", 1)
    broker.send("anew", [(0, as_json(row)) for row in rows_of(visits(days=1))])
    kafka = case(SQL, **declared(broker, "anew"))
    kafka.go(START + DAY)
    broker.drop_topic("anew")
    broker.make_topic("anew", 1)
    broker.send("anew", [(0, as_json(row)) for row in rows_of(visits(days=1))[:10]])
    with pytest.raises(DataError, match="the broker no longer has messages that this run has not read"):
        kafka.go(START + 2 * DAY)
    away = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "2000", "kafka.request.timeout.ms": "1000"}
    with pytest.raises(DataError, match=r"source 'visits': no Kafka broker answers"):
        case(SQL, **declared(broker, "x", **away, **{"fetchOffset.numRetries": "1"})).go(START + DAY)
