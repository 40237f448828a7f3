"""CREATE CONNECTION -> a checked connection: which options belong together, exclude or need each other."""

from urllib.parse import urlsplit

from calve.definitions.store import Definitions
from calve.model.connection import (
    AwsConnection,
    CatalogConnection,
    CatalogType,
    Connection,
    KafkaConnection,
    Login,
)
from calve.plan import catalogue
from calve.plan.lookup import required_connection, secret
from calve.plan.settings import CheckedOptions
from calve.sql.errors import SqlError
from calve.sql.statements import ConnectionKind, CreateConnection

_LOGINS = ("PASSWORD", "CREDENTIAL", "TOKEN")
_REST_ONLY = ("USER", "PASSWORD", "AUTH", "CREDENTIAL", "TOKEN", "SCOPE", "OAUTH2 SERVER URI")
_WEB = ("http", "https")
_SCHEMES = {
    CatalogType.REST: _WEB,
    CatalogType.S3TABLES: _WEB,
    CatalogType.GLUE: _WEB,
    CatalogType.HIVE: ("thrift",),
}
_SIGNED = frozenset({CatalogType.REST, CatalogType.S3TABLES, CatalogType.GLUE})


def plan_connection(statement: CreateConnection, definitions: Definitions) -> Connection:
    """The connection that a statement describes."""
    catalogue.CONNECTION_STATEMENT.checked(statement.settings, statement.where)
    match statement.kind:
        case ConnectionKind.AWS:
            return _aws(catalogue.AWS.checked(statement.options, statement.where), definitions)
        case ConnectionKind.ICEBERG_CATALOG:
            return _catalog(catalogue.ICEBERG_CATALOG.checked(statement.options, statement.where), definitions)
        case ConnectionKind.KAFKA:
            return _kafka(catalogue.KAFKA.checked(statement.options, statement.where), definitions)


def wants_validation(statement: CreateConnection) -> bool:
    """Whether the connection is to be tried when it is created: unless told not to; to AWS, if told to."""
    told = catalogue.CONNECTION_STATEMENT.checked(statement.settings, statement.where).flag("VALIDATE")
    return statement.kind is not ConnectionKind.AWS if told is None else told


def connected_aws(statement: CreateConnection, definitions: Definitions) -> AwsConnection:
    """An AWS connection out of its stored statement."""
    planned = plan_connection(statement, definitions)
    if not isinstance(planned, AwsConnection):
        raise TypeError("not a connection to AWS")
    return planned


def _aws(given: CheckedOptions, definitions: Definitions) -> AwsConnection:
    given.need("ACCESS KEY ID", "SECRET ACCESS KEY")
    given.need("SECRET ACCESS KEY", "ACCESS KEY ID")
    given.need("SESSION TOKEN", "ACCESS KEY ID")
    given.need("ASSUME ROLE SESSION NAME", "ASSUME ROLE ARN")
    _check_uri(given, "ENDPOINT", *_WEB)
    return AwsConnection(
        access_key_id=given.text("ACCESS KEY ID"),
        secret_access_key=secret(definitions, given.secret("SECRET ACCESS KEY")),
        session_token=secret(definitions, given.secret("SESSION TOKEN")),
        role_arn=given.text("ASSUME ROLE ARN"),
        role_session_name=given.text("ASSUME ROLE SESSION NAME"),
        region=given.text("REGION"),
        endpoint=given.text("ENDPOINT"),
    )


def _catalog(given: CheckedOptions, definitions: Definitions) -> CatalogConnection:
    text = given.text("TYPE") or ""
    kind = CatalogType.S3TABLES if text == "s3table" else CatalogType(text)
    _check_type(given, kind)
    _check_login(given)
    _check_uri(given, "URI", *_SCHEMES.get(kind, ()))
    _check_uri(given, "OAUTH2 SERVER URI", *_WEB)
    name = given.name("AWS CONNECTION")
    aws = None
    if name is not None:
        found = required_connection(definitions, name, ConnectionKind.AWS)
        if isinstance(found.statement, CreateConnection):
            aws = connected_aws(found.statement, definitions)
    return CatalogConnection(
        type=kind,
        uri=given.text("URI"),
        warehouse=given.text("WAREHOUSE"),
        user=given.text("USER"),
        password=secret(definitions, given.secret("PASSWORD")),
        login=Login(given.text("AUTH") or Login.BASIC.value),
        credential=secret(definitions, given.secret("CREDENTIAL")),
        token=secret(definitions, given.secret("TOKEN")),
        scope=given.text("SCOPE"),
        oauth2_server_uri=given.text("OAUTH2 SERVER URI"),
        aws=aws,
        signing_name=given.text("SIGNING NAME"),
    )


def _check_type(given: CheckedOptions, kind: CatalogType) -> None:
    """What a kind of catalog needs, and what means nothing to it."""
    needed = {
        CatalogType.REST: ("URI",),
        CatalogType.S3TABLES: ("WAREHOUSE", "AWS CONNECTION"),
        CatalogType.SQL: ("URI", "WAREHOUSE"),
        CatalogType.HIVE: ("URI",),
    }
    for name in needed.get(kind, ()):
        if name not in given:
            raise given.error("TYPE", f"a catalog of type '{kind}' needs {name}", f"Add {name} = ...")
    foreign = [] if kind is CatalogType.REST else list(_REST_ONLY)
    if kind is CatalogType.SQL:
        foreign = [name for name in foreign if name not in {"USER", "PASSWORD"}]
    if kind is CatalogType.EMBEDDED:
        foreign = [name for name in given if name != "TYPE"]
    elif kind not in _SIGNED:
        foreign += ["AWS CONNECTION", "SIGNING NAME"] if kind is not CatalogType.SQL else ["SIGNING NAME"]
    for name in foreign:
        if name in given:
            raise given.error(name, f"a catalog of type '{kind}' takes no {name}", "Leave it out.")
    given.need("SIGNING NAME", "AWS CONNECTION")


def _check_login(given: CheckedOptions) -> None:
    given.need("USER", "PASSWORD")
    given.need("PASSWORD", "USER")
    given.need("AUTH", "USER")
    given.exclude("PASSWORD", "CREDENTIAL", "TOKEN")
    given.exclude("CREDENTIAL", "TOKEN")
    for name in _LOGINS:
        given.exclude(name, "SIGNING NAME")
    if "SCOPE" in given and "CREDENTIAL" not in given and given.text("AUTH") != "oauth2":
        raise given.error("SCOPE", "SCOPE needs CREDENTIAL, or AUTH = 'oauth2'")


def _check_uri(given: CheckedOptions, name: str, *schemes: str) -> None:
    """An address of a kind, without user and password in it: it is shown in messages and stored as it is."""
    text = given.text(name)
    if text is None:
        return
    try:
        parts = urlsplit(text)
        has_login = parts.password is not None
    except ValueError as error:
        raise given.error(name, f"{name} is no address") from error
    if has_login and not parts.scheme.startswith("sqlite"):
        raise given.error(name, f"{name} has a password in it", "Use USER = '...', PASSWORD = SECRET name.")
    if schemes and parts.scheme not in schemes:
        starts = " or ".join(f"{scheme}://" for scheme in schemes)
        raise given.error(name, f"{name} is no address of that kind", f"It starts with {starts}.")


def _kafka(given: CheckedOptions, definitions: Definitions) -> KafkaConnection:
    given.exclude("BROKER", "BROKERS")
    brokers = given.text("BROKER") or given.text("BROKERS")
    if not brokers:
        raise SqlError.at(given.where, "a connection to Kafka needs BROKER", hint="Add BROKER = 'host:9092'.")
    given.need("SASL MECHANISM", "SASL USERNAME", "SASL PASSWORD")
    given.need("SASL USERNAME", "SASL MECHANISM")
    given.need("SASL PASSWORD", "SASL USERNAME")
    protocol = given.text("SECURITY PROTOCOL") or "plaintext"
    if protocol.startswith("sasl") and "SASL MECHANISM" not in given:
        raise given.error("SECURITY PROTOCOL", f"SECURITY PROTOCOL = '{protocol}' needs SASL MECHANISM")
    if "SASL MECHANISM" in given and not protocol.startswith("sasl"):
        raise given.error("SASL MECHANISM", "SASL MECHANISM needs a SECURITY PROTOCOL with SASL", "Write 'sasl_ssl'.")
    given.need("SSL CERTIFICATE", "SSL KEY")
    given.need("SSL KEY", "SSL CERTIFICATE")
    given.need("SSL KEY PASSWORD", "SSL KEY")
    for name in (name for name in given if name.startswith("SSL ") and not protocol.endswith("ssl")):
        raise given.error(name, f"{name} needs a SECURITY PROTOCOL with SSL", "Write 'ssl' or 'sasl_ssl'.")
    return KafkaConnection(
        brokers=brokers,
        security_protocol=protocol,
        mechanism=given.text("SASL MECHANISM"),
        username=given.text("SASL USERNAME"),
        password=secret(definitions, given.secret("SASL PASSWORD")),
        authority=given.text("SSL CERTIFICATE AUTHORITY"),
        certificate=given.text("SSL CERTIFICATE"),
        key=secret(definitions, given.secret("SSL KEY")),
        key_password=secret(definitions, given.secret("SSL KEY PASSWORD")),
    )
