"""A real single-node Kafka (KRaft, loopback) from the jars of conf/ivy.xml."""

from __future__ import annotations

import base64
import os
import subprocess
import uuid
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from dpsql import jars
from tests.deployment.processes import Daemon, free_ports, listens

SMALL = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
ONE_OF_EACH = {
    f"{topic}.{setting}": "1"
    for topic, settings in {
        "offsets.topic": ("replication.factor", "num.partitions"),
        "transaction.state.log": ("replication.factor", "min.isr", "num.partitions"),
        "share.coordinator.state.topic": ("replication.factor", "min.isr", "num.partitions"),
    }.items()
    for setting in settings
}
"""Internal topics: their three replicas and fifty partitions would never form here."""
PASSWORD = "planted-kafka-password-3d08"
LOGIN = f'org.apache.kafka.common.security.plain.PlainLoginModule required username=dpsql password="{PASSWORD}" user_dpsql="{PASSWORD}";'
FROM_FILE = {
    "config.providers": "directory",
    "config.providers.directory.class": "org.apache.kafka.common.config.provider.DirectoryConfigProvider",
}


class Broker:
    """Kafka for a `with` block, which asks for a password unless it is open; afterwards no process and no port of it is left."""

    def __init__(self, home: Path, opened: bool = False) -> None:
        self.home = home
        self.port, controller = free_ports(2)
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._ports = (self.port, controller)
        protocol = "PLAINTEXT" if opened else "SASL_PLAINTEXT"
        login = f"${{directory:{home / 'secret'}:login}}"
        asking = (
            {} if opened else {"sasl.mechanism": "PLAIN", "sasl.jaas.config": login, **FROM_FILE}
        )
        self.options = {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": protocol,
            **asking,
        }
        """For a client in Java, as sources declare them."""
        passwords = (
            {}
            if opened
            else {"sasl.mechanism": "PLAIN", "sasl.username": "dpsql", "sasl.password": PASSWORD}
        )
        self._client = {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": protocol,
            "log_level": 0,
            **passwords,
        }
        self._settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"CLUSTER://{self.bootstrap},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"CLUSTER://{self.bootstrap}",
            "listener.security.protocol.map": f"CLUSTER:{protocol},CONTROLLER:{protocol}",
            "inter.broker.listener.name": "CLUSTER",
            "controller.listener.names": "CONTROLLER",
            **dict.fromkeys(
                (
                    "sasl.enabled.mechanisms",
                    "sasl.mechanism.inter.broker.protocol",
                    "sasl.mechanism.controller.protocol",
                ),
                "PLAIN",
            ),
            **{
                f"listener.name.{name}.plain.sasl.jaas.config": login
                for name in ("cluster", "controller")
            },
            **FROM_FILE,
            "log.dirs": str(home / "data"),
            "group.initial.rebalance.delay.ms": "0",
            "log.cleaner.dedupe.buffer.size": "2097152",
            **ONE_OF_EACH,
        }

    def __enter__(self) -> Broker:
        (self.home / "secret").mkdir(parents=True, mode=0o700)
        (self.home / "secret" / "login").write_text(LOGIN)
        conf = self.home / "server.properties"
        conf.write_text("".join(f"{name}={value}\n" for name, value in self._settings.items()))
        cluster = (
            base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
        )
        done = subprocess.run(
            self._java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(conf)),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        self.daemon = Daemon(self._java("kafka.Kafka", str(conf)), self.home / "stdout.log")
        self.daemon.wait_for(lambda: listens(self.port))
        self.admin = AdminClient(self._client)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del self.admin  # a client that outlives its broker complains on stderr
        self.daemon.stop()
        assert not any(listens(port) for port in self._ports)

    def make_topic(self, topic: str, partitions: int) -> None:
        self.admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)

    def drop_topic(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(30)

    def send(self, topic: str, messages: Iterable[tuple[int, bytes | None]]) -> None:
        """Write (partition, value) in order."""
        producer = Producer({**self._client, "enable.idempotence": True})
        for partition, value in messages:
            producer.produce(topic, value=value, partition=partition)
        assert producer.flush(60) == 0

    def expire(self, topic: str, partition: int, before: int) -> None:
        """Forget the records of a partition before an offset, as retention does."""
        self.admin.delete_records([TopicPartition(topic, partition, before)])[
            TopicPartition(topic, partition)
        ].result(30)

    def _java(self, *arguments: str) -> list[str]:
        java = (
            str(Path(os.environ["JAVA_HOME"]) / "bin" / "java")
            if os.environ.get("JAVA_HOME")
            else "java"
        )
        log = (
            f"-Dorg.slf4j.simpleLogger.logFile={self.home / 'broker.log'}",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        )
        return [
            java,
            *SMALL,
            *log,
            "-cp",
            os.pathsep.join(map(str, jars.ensure(jars.BROKER))),
            *arguments,
        ]
