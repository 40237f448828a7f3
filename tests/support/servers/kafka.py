"""Apache Kafka: one broker that is its own controller; each test uses its own topic names.

It has four ports: plaintext; user and password (SASL, PLAIN); user and password over TLS (SCRAM-SHA-256); and client
certificates.
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

from calve.spark.java import find_java
from tests.support.servers.java import START_SECONDS, JavaServer, free_port, jars_of

USER, PASSWORD = "calve", "wolfram-broker-password"
_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
_LOGIN = "org.apache.kafka.common.security"
AUTHORITY, STRANGER = (Path(__file__).with_name("tls") / name for name in ("server.pem", "other.pem"))
"""The CA of the broker, and another one."""
CLIENT, CLIENT_KEY = (AUTHORITY.with_name(f"client.{kind}") for kind in ("pem", "key"))
"""The certificate that lets a client in, and its key, which the next one protects."""
CLIENT_KEY_PASSWORD = "wolfram-key-password"  # noqa: S105 - it protects nothing
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{controller}
listeners={listeners}
advertised.listeners={advertised}
controller.listener.names=CONTROLLER
listener.security.protocol.map=\
PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL,CONTROLLER:PLAINTEXT
listener.name.sasl_plaintext.sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config={login}.plain.PlainLoginModule required user_{user}="{password}";
listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config={login}.scram.ScramLoginModule required;
listener.name.sasl_ssl.sasl.enabled.mechanisms=SCRAM-SHA-256
listener.name.ssl.ssl.client.auth=required
listener.name.ssl.ssl.truststore.type=PEM
listener.name.ssl.ssl.truststore.location={client}
ssl.keystore.type=PEM
ssl.keystore.location={certificate}
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
        ports = [free_port() for _ in range(5)]
        places = [f"127.0.0.1:{port}" for port in ports]
        self.brokers, self.guarded, self.encrypted, self.certified, controller = places
        words = ("PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL", "SSL", "CONTROLLER")
        listeners = [f"{word}://{place}" for word, place in zip(words, places, strict=True)]
        certificate = folder / "broker.pem"
        certificate.write_text(AUTHORITY.with_name("server.key").read_text() + AUTHORITY.read_text())
        self._folder, self._port, self._settings = folder, ports[0], folder / "kafka.properties"
        self._settings.write_text(
            _SETTINGS.format(
                listeners=",".join(listeners),
                advertised=",".join(listeners[:-1]),
                controller=controller,
                certificate=certificate,
                client=CLIENT,
                login=_LOGIN,
                user=USER,
                password=PASSWORD,
                folder=folder / "kafka",
            )
        )
        format_storage = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(self._settings)]
        format_storage += ["--add-scram", f"SCRAM-SHA-256=[name={USER},password={PASSWORD}]"]
        java = find_java(folder / "java", os.environ) / "bin" / "java"
        subprocess.run(
            [str(java), "-XX:TieredStopAtLevel=1", _QUIET, "-cp", f"{jars_of('kafka')}/*", *format_storage],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        self._server = self._started()
        self._admin = AdminClient({"bootstrap.servers": self.brokers, "log_level": 0})

    def _started(self) -> JavaServer:
        return JavaServer("kafka", [_QUIET, "kafka.Kafka", str(self._settings)], self._port, self._folder, {})

    def await_answer(self) -> None:
        """Wait until it takes orders."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self._admin.list_topics(timeout=1)
            except KafkaException:
                if time.monotonic() > deadline or not self._server.alive:
                    self.stop()
                    raise
            else:
                return

    def stop(self) -> None:
        """End it."""
        self._server.stop()

    def kill(self) -> None:
        """End it as if its machine were gone."""
        self._server.kill()

    def come_back(self) -> None:
        """After `kill`: with the same records, at the same ports."""
        self._server = self._started()
        self.await_answer()

    def topic(self, partitions: int = 1, name: str | None = None, settings: Mapping[str, str] | None = None) -> str:
        """A new topic; of this name, or of one that no other test has."""
        name = name or f"orders-{uuid.uuid4().hex[:8]}"
        deadline = time.monotonic() + START_SECONDS
        while True:  # one of that name may be on its way out
            try:
                self._admin.create_topics([NewTopic(name, partitions, 1, config=dict(settings or {}))])[name].result()
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
