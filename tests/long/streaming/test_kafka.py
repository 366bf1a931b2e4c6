"""A topic that is read on, has lost messages, or was made anew; a broker that is away."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dpsql.errors import DataError
from tests.deployment.kafka_broker import LOGIN, PASSWORD, Broker
from tests.deployment.other_user import answers
from tests.streaming.test_kafka import DAY, SQL, START, as_json, broker, declared, rows_of

__all__ = ["broker"]
WRONG = "planted-other-password"


def test_a_later_start_goes_on_from_the_offsets_and_never_past_a_gap(
    case: Any, visits: Any, broker: Broker
) -> None:
    first = visits(days=1)
    second = visits(days=1, first_day=1)
    broker.make_topic("goes_on", 2)
    broker.send("goes_on", [(i % 2, as_json(row)) for i, row in enumerate(rows_of(first))])
    kafka = case(SQL, **declared(broker, "goes_on"))
    kafka.go(START + DAY)
    broker.expire("goes_on", 0, 100)  # read already: no loss
    broker.send("goes_on", [(i % 2, as_json(row)) for i, row in enumerate(rows_of(second))])
    assert kafka.go(START + 2 * DAY).records == 360
    assert kafka.histogram() == kafka.of_local_engine(
        pa.concat_tables([first, second]), START + 2 * DAY
    )
    before = kafka.histogram()
    broker.send("goes_on", [(0, as_json(row)) for row in rows_of(visits(days=1, first_day=2))])
    broker.expire("goes_on", 0, 400)
    for _ in range(2):
        with pytest.raises(
            DataError,
            match=r"source 'visits': the broker no longer has messages that this run has not read",
        ) as told:
            kafka.go(START + 3 * DAY)
        assert "\n" not in str(told.value)
    assert kafka.histogram() == before


def test_a_topic_made_anew_or_a_broker_that_is_away_or_lets_nobody_in_is_told(
    case: Any, visits: Any, broker: Broker
) -> None:
    broker.make_topic("anew", 1)
    broker.send("anew", [(0, as_json(row)) for row in rows_of(visits(days=1))])
    kafka = case(SQL, **declared(broker, "anew"))
    kafka.go(START + DAY)
    broker.drop_topic("anew")
    broker.make_topic("anew", 1)
    broker.send("anew", [(0, as_json(row)) for row in rows_of(visits(days=1))[:10]])
    with pytest.raises(
        DataError, match="the broker no longer has messages that this run has not read"
    ):
        kafka.go(START + 2 * DAY)
    away = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "kafka.default.api.timeout.ms": "2000",
        "kafka.request.timeout.ms": "1000",
    }
    with pytest.raises(DataError, match=r"source 'visits': no Kafka broker answers"):
        case(SQL, **declared(broker, "x", **away, **{"fetchOffset.numRetries": "1"})).go(
            START + DAY
        )
    for login in (LOGIN.replace(PASSWORD, WRONG), "${directory:/nowhere:login}"):
        with pytest.raises(
            DataError,
            match=r"source 'visits': Kafka refuses the options: are login and password right",
        ) as told:
            case(SQL, **declared(broker, "anew", **{"kafka.sasl.jaas.config": login})).go(
                START + DAY
            )
        assert WRONG not in str(told.value)


def test_a_broker_with_a_password_tells_strangers_nothing_and_takes_nothing(
    tmp_path: Path, broker: Broker
) -> None:
    """The same client gets both of one without."""
    broker.make_topic("told", 1)
    asked = answers([broker.daemon.process.pid])
    assert len(asked) == 2 and not any(
        got["ran"] or got["pages"] or got["blocks"] for got in asked.values()
    ), asked
    assert "stranger" not in broker.admin.list_topics(timeout=10).topics
    with Broker(tmp_path, opened=True) as opened:
        opened.make_topic("told", 1)
        told = answers([opened.daemon.process.pid])[opened.bootstrap]
        assert "told" in told["pages"]["Kafka's topics"] and told["ran"]
        assert "stranger" in opened.admin.list_topics(timeout=10).topics
