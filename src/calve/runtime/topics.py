"""Connections to Kafka and sources from it, as they are planned -> as they are read: secrets are looked up here."""

from pathlib import Path

from calve.catalog.properties import Reveal
from calve.errors import InvalidInput
from calve.model.connection import KafkaConnection, SchemaRegistry
from calve.model.relation import KafkaInput
from calve.model.spec import Envelope, EpochUnit
from calve.source.kafka.avro import Avro, parsed_schema
from calve.source.kafka.brokers import Access, Brokers
from calve.source.kafka.definition import MAX_OFFSETS, Beginning, Kafka
from calve.source.kafka.registry import Registry

_PEM = "-----BEGIN"


def topic_of(found: KafkaInput, envelope: Envelope, reveal: Reveal) -> Kafka:
    """The source of a topic."""
    avro = None
    if found.format == "avro":
        avro = Avro(found.avro_schema, _registry(found.registry, reveal) if found.registry else None)
    return Kafka(
        access=access_of(found.connection, reveal),
        topic=found.topic,
        envelope=envelope,
        schema=found.schema,
        beginning=Beginning.parse(found.start),
        max_offsets=found.max_offsets or MAX_OFFSETS,
        included=found.included,
        avro=avro,
        epoch_unit=EpochUnit(found.epoch_unit) if found.epoch_unit else None,
    )


def check_topic(found: KafkaInput, envelope: Envelope, reveal: Reveal) -> None:
    """Whether a source can work: where it begins, its schema and, unless its connection is not to be tried, its topic.

    Raises InvalidInput, and TransientError where nobody answers.
    """
    topic = topic_of(found, envelope, reveal)
    if found.avro_schema:
        parsed_schema(found.avro_schema)
    if not found.unchecked:
        topic.check()


def try_brokers(connection: KafkaConnection, reveal: Reveal) -> None:
    """Whether the brokers answer. Raises TransientError."""
    Brokers(access_of(connection, reveal)).check()


def access_of(connection: KafkaConnection, reveal: Reveal) -> Access:
    """A connection in the words of librdkafka, which takes certificates and keys as texts: executors need no files."""
    options = {
        "security.protocol": connection.security_protocol,
        "sasl.mechanism": connection.mechanism.upper() if connection.mechanism else None,
        "sasl.username": connection.username,
        "sasl.password": reveal(connection.password) if connection.password else None,
        "ssl.ca.pem": _certificate(connection.authority),
        "ssl.certificate.pem": _certificate(connection.certificate),
        "ssl.key.pem": reveal(connection.key) if connection.key else None,
        "ssl.key.password": reveal(connection.key_password) if connection.key_password else None,
    }
    return Access(connection.brokers, {name: value for name, value in options.items() if value is not None})


def _certificate(given: str | None) -> str | None:
    if given is None or given.lstrip().startswith(_PEM):
        return given
    try:
        return Path(given).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f'the certificate "{given}" cannot be read', detail=f"{error}.") from error


def _registry(registry: SchemaRegistry, reveal: Reveal) -> Registry:
    if registry.user is None or registry.password is None:
        return Registry(registry.url)
    return Registry(registry.url, (registry.user, reveal(registry.password)))
