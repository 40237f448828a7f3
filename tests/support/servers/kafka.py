"""Apache Kafka: one broker that is its own controller; topics of one test have names of their own.

It speaks plainly at one port, and asks for a name and a password (SASL, PLAIN) at another.
"""

import json
import os
import subprocess
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from calve.runtime.java import find_java
from tests.support.servers.java import START_SECONDS, JavaServer, free_port, jars_of

USER, PASSWORD = "calve", "wolfram-broker-password"
_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{guarded},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{guarded}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config={login} required user_{user}="{password}";
log.dirs={folder}
log.cleaner.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
auto.create.topics.enable=false
"""

Message = tuple[Any, Any]
"""Key and value: bytes, None, or what becomes JSON."""


class Kafka:
    """One broker."""

    def __init__(self, folder: Path) -> None:
        ports = [free_port() for _ in range(3)]
        self.brokers, self.guarded = (f"127.0.0.1:{port}" for port in ports[:2])
        settings = folder / "kafka.properties"
        names = dict(zip(("plain", "guarded", "controller"), ports, strict=True))
        settings.write_text(
            _SETTINGS.format(**names, login=_LOGIN, user=USER, password=PASSWORD, folder=folder / "kafka")
        )
        format_storage = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(settings)]
        java = find_java(folder / "java", os.environ) / "bin" / "java"
        subprocess.run(
            [str(java), "-XX:TieredStopAtLevel=1", _QUIET, "-cp", f"{jars_of('kafka')}/*", *format_storage],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        self._server = JavaServer("kafka", [_QUIET, "kafka.Kafka", str(settings)], ports[0], folder, {})
        self._admin = AdminClient({"bootstrap.servers": self.brokers, "log_level": 0})

    def await_answer(self) -> None:
        """Wait until it takes orders."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self._admin.list_topics(timeout=1)
            except KafkaException:
                if time.monotonic() > deadline:
                    self.stop()
                    raise
            else:
                return

    def stop(self) -> None:
        """End it."""
        self._server.stop()

    def topic(self, partitions: int = 1, name: str | None = None) -> str:
        """A new topic; of this name, or of one that no other test has."""
        name = name or f"orders-{uuid.uuid4().hex[:8]}"
        deadline = time.monotonic() + START_SECONDS
        while True:  # one of that name may be on its way out
            try:
                self._admin.create_topics([NewTopic(name, partitions, 1)])[name].result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS or time.monotonic() > deadline:
                    raise
            else:
                break
        return name

    def remove(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result()

    def widen(self, topic: str, partitions: int) -> None:
        """Let a topic have more partitions."""
        self._admin.create_partitions([NewPartitions(topic, partitions)])[topic].result()

    def forget(self, topic: str, before: int, partition: int = 0) -> None:
        """Remove the records before an offset, as retention does."""
        place = TopicPartition(topic, partition, before)
        self._admin.delete_records([place])[place].result()

    def send(
        self,
        topic: str,
        messages: Iterable[Message],
        partition: int = 0,
        headers: Mapping[str, bytes] | None = None,
        transaction: str = "",
    ) -> None:
        """Put records into a partition, in order; in a transaction that ends so: `commit` or `abort`."""
        settings: dict[str, Any] = {"bootstrap.servers": self.brokers, "linger.ms": 5}
        producer = Producer(settings | ({"transactional.id": uuid.uuid4().hex} if transaction else {}))
        if transaction:
            producer.init_transactions()
            producer.begin_transaction()
        for key, value in messages:
            producer.produce(topic, _bytes(value), _bytes(key), partition, headers=dict(headers or {}))
            producer.poll(0)
        assert producer.flush(30) == 0
        if transaction == "commit":
            producer.commit_transaction()
        elif transaction == "abort":
            producer.abort_transaction()


def _bytes(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else json.dumps(value).encode()


def started(folder: Path) -> Kafka:
    """A broker that answers."""
    kafka = Kafka(folder)
    kafka.await_answer()
    return kafka
