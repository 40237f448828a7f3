"""Connections to Kafka and to schema registries, with their secrets revealed."""

from pathlib import Path

from calve.catalog.properties import Reveal
from calve.errors import InvalidInput
from calve.model.connection import KafkaConnection, SchemaRegistry
from calve.model.relation import KafkaInput
from calve.source.kafka.avro import Avro
from calve.source.kafka.brokers import BrokerAccess
from calve.source.kafka.protobuf import Protobuf
from calve.source.kafka.reader import Encoding
from calve.source.kafka.registry import RegistryClient

_PEM = "-----BEGIN"


def access_of(connection: KafkaConnection, reveal: Reveal) -> BrokerAccess:
    """Translate a connection to librdkafka's options. Certificates and keys are inlined: executors need no files."""
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
    return BrokerAccess(connection.brokers, {name: value for name, value in options.items() if value is not None})


def _certificate(given: str | None) -> str | None:
    if given is None or given.lstrip().startswith(_PEM):
        return given
    try:
        return Path(given).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f'the certificate "{given}" cannot be read', detail=f"{error}.") from error


def registry_of(registry: SchemaRegistry, reveal: Reveal) -> RegistryClient:
    """The client of a schema registry."""
    if registry.user is None or registry.password is None:
        return RegistryClient(registry.url)
    return RegistryClient(registry.url, (registry.user, reveal(registry.password)))


def encoding_of(found: KafkaInput, reveal: Reveal) -> Encoding | None:
    """What the records of a topic are decoded from."""
    registry = registry_of(found.registry, reveal) if found.registry else None
    if found.format == "avro":
        return Avro(found.avro_schema, registry)
    return Protobuf(registry) if found.format == "protobuf" and registry else None
