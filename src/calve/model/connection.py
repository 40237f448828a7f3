"""Connections, checked and complete. Secrets are references, resolved when the connection is used."""

from enum import StrEnum
from typing import Final

from calve.values import value

DEFAULT_CATALOG_NAME: Final = "calve"
"""SQL catalogs store their name with every table: other clients find the tables only under the same name."""


@value
class SecretRef:
    """A secret by the identity of its definition."""

    uid: str
    name: str


class CatalogType(StrEnum):
    """Kinds of catalogs; `EMBEDDED` is the one in the home folder."""

    EMBEDDED = "embedded"
    REST = "rest"
    S3TABLES = "s3tables"
    SQL = "sql"
    GLUE = "glue"
    HIVE = "hive"


class Login(StrEnum):
    """How a REST catalog uses user and password."""

    BASIC = "basic"
    OAUTH2 = "oauth2"


@value
class AwsConnection:
    """Credentials, region and endpoint of AWS or of a compatible store."""

    access_key_id: str | None = None
    secret_access_key: SecretRef | None = None
    session_token: SecretRef | None = None
    role_arn: str | None = None
    role_session_name: str | None = None
    region: str | None = None
    endpoint: str | None = None


@value
class CatalogConnection:
    """Address and credentials of an Iceberg catalog."""

    type: CatalogType
    uri: str | None = None
    warehouse: str | None = None
    user: str | None = None
    password: SecretRef | None = None
    login: Login = Login.BASIC
    credential: SecretRef | None = None
    token: SecretRef | None = None
    scope: str | None = None
    oauth2_server_uri: str | None = None
    aws: AwsConnection | None = None
    signing_name: str | None = None
    catalog_name: str | None = None
    """Under which a SQL catalog keeps its tables."""


@value
class KafkaConnection:
    """Address and credentials of Kafka brokers. Certificates are PEM texts, or names of files with them."""

    brokers: str
    security_protocol: str = "plaintext"
    mechanism: str | None = None
    username: str | None = None
    password: SecretRef | None = None
    authority: str | None = None
    certificate: str | None = None
    key: SecretRef | None = None
    key_password: SecretRef | None = None


@value
class SchemaRegistry:
    """Address and credentials of the registry with the schemas of Avro and Protobuf records."""

    url: str
    user: str | None = None
    password: SecretRef | None = None


Connection = AwsConnection | CatalogConnection | KafkaConnection
