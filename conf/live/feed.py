"""Makes the topic `edits` and writes the demo's day of edits into it, 48 times as fast: a day is half an hour by the wall clock, again and again."""

import json
import re
import time
from pathlib import Path

import pyarrow.parquet as pq
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

LOGIN = dict(re.findall(r'(\w+)="?(\w+)', Path("/kafka-secret/login").read_text()))
BROKER = {
    "bootstrap.servers": "kafka:9092", "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
    "sasl.username": LOGIN["username"], "sasl.password": LOGIN["password"],
}  # fmt: skip
TOPIC = "edits"
DAY = 86_400
SPEED = 48
LENGTH = DAY // SPEED


def make_topic() -> bool:
    """Whether it was not there."""
    admin = AdminClient(BROKER)
    try:
        admin.create_topics([NewTopic(TOPIC, 3, 1)])[TOPIC].result()
    except KafkaException as problem:
        if problem.args[0].name() != "TOPIC_ALREADY_EXISTS":
            raise
        return False
    return True


def main() -> None:
    """Write for ever. A new topic begins with what the present half hour has had so far."""
    now = time.time()
    begin = now // LENGTH * LENGTH if make_topic() else now
    Path("/tmp/topic").touch()  # the job may begin
    producer = Producer(BROKER)
    edits = pq.read_table("/opt/dpsql/conf/demo/wiki").sort_by("ts").to_pylist()
    day = now // LENGTH * LENGTH
    while True:
        for edit in edits:
            at = day + edit["ts"].timestamp() % DAY / SPEED
            if at < begin:
                continue
            if at > time.time():
                producer.poll(at - time.time())
                time.sleep(max(0.0, at - time.time()))
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
            producer.produce(TOPIC, json.dumps(edit | {"ts": stamp}))
        producer.flush()
        day += LENGTH


main()
