"""CREATE CONNECTION -> a checked connection: options that need each other, exclude each other or are unsupported."""

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
from calve.plan.catalogue import AwsOptions, CatalogOptions, ConnectionStatementOptions, KafkaOptions
from calve.plan.lookup import required_connection, secret
from calve.plan.settings import AnySetting, CheckedOptions, Setting
from calve.sql.errors import SqlError
from calve.sql.names import Identifier
from calve.sql.options import SecretName
from calve.sql.statements import ConnectionKind, CreateConnection

_LOGINS = (CatalogOptions.PASSWORD, CatalogOptions.CREDENTIAL, CatalogOptions.TOKEN)
_REST_ONLY = (
    CatalogOptions.USER,
    CatalogOptions.PASSWORD,
    CatalogOptions.AUTH,
    CatalogOptions.CREDENTIAL,
    CatalogOptions.TOKEN,
    CatalogOptions.SCOPE,
    CatalogOptions.OAUTH2_SERVER_URI,
)
_NEEDED: dict[CatalogType, tuple[AnySetting, ...]] = {
    CatalogType.REST: (CatalogOptions.URI,),
    CatalogType.S3TABLES: (CatalogOptions.WAREHOUSE, CatalogOptions.AWS_CONNECTION),
    CatalogType.SQL: (CatalogOptions.URI, CatalogOptions.WAREHOUSE),
    CatalogType.HIVE: (CatalogOptions.URI,),
}
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
    catalogue.CONNECTION_STATEMENT.check(statement.settings, statement.where)
    match statement.kind:
        case ConnectionKind.AWS:
            return _aws(catalogue.AWS.check(statement.options, statement.where), definitions)
        case ConnectionKind.ICEBERG_CATALOG:
            return _catalog(catalogue.ICEBERG_CATALOG.check(statement.options, statement.where), definitions)
        case ConnectionKind.KAFKA:
            return _kafka(catalogue.KAFKA.check(statement.options, statement.where), definitions)


def wants_validation(statement: CreateConnection) -> bool:
    """Whether to test the connection when it is created. The default is true, except for AWS."""
    given = catalogue.CONNECTION_STATEMENT.check(statement.settings, statement.where)
    return given.get(ConnectionStatementOptions.VALIDATE, statement.kind is not ConnectionKind.AWS)


def uses_of_connection(statement: CreateConnection, definitions: Definitions) -> tuple[str, ...]:
    """Uids of the secrets and connections that a connection refers to."""
    found = []
    for option in statement.options:
        if isinstance(option.value, SecretName):
            reference = secret(definitions, option.value)
            found.append(reference.uid if reference else "")
        elif option.name == CatalogOptions.AWS_CONNECTION.name and isinstance(option.value, Identifier):
            found.append(required_connection(definitions, option.value, ConnectionKind.AWS).uid)
    return tuple(found)


def plan_aws_connection(statement: CreateConnection, definitions: Definitions) -> AwsConnection:
    """An AWS connection from its stored statement."""
    planned = plan_connection(statement, definitions)
    if not isinstance(planned, AwsConnection):
        raise TypeError("not a connection to AWS")
    return planned


def _aws(given: CheckedOptions, definitions: Definitions) -> AwsConnection:
    given.need(AwsOptions.ACCESS_KEY_ID, AwsOptions.SECRET_ACCESS_KEY)
    given.need(AwsOptions.SECRET_ACCESS_KEY, AwsOptions.ACCESS_KEY_ID)
    given.need(AwsOptions.SESSION_TOKEN, AwsOptions.ACCESS_KEY_ID)
    given.need(AwsOptions.ASSUME_ROLE_SESSION_NAME, AwsOptions.ASSUME_ROLE_ARN)
    _check_uri(given, AwsOptions.ENDPOINT, *_WEB)
    return AwsConnection(
        access_key_id=given.get(AwsOptions.ACCESS_KEY_ID),
        secret_access_key=secret(definitions, given.get(AwsOptions.SECRET_ACCESS_KEY)),
        session_token=secret(definitions, given.get(AwsOptions.SESSION_TOKEN)),
        role_arn=given.get(AwsOptions.ASSUME_ROLE_ARN),
        role_session_name=given.get(AwsOptions.ASSUME_ROLE_SESSION_NAME),
        region=given.get(AwsOptions.REGION),
        endpoint=given.get(AwsOptions.ENDPOINT),
    )


def _catalog(given: CheckedOptions, definitions: Definitions) -> CatalogConnection:
    text = given.required(CatalogOptions.TYPE)
    kind = CatalogType.S3TABLES if text == "s3table" else CatalogType(text)
    _check_type(given, kind)
    _check_login(given)
    _check_uri(given, CatalogOptions.URI, *_SCHEMES.get(kind, ()))
    _check_uri(given, CatalogOptions.OAUTH2_SERVER_URI, *_WEB)
    name = given.get(CatalogOptions.AWS_CONNECTION)
    aws = None
    if name is not None:
        found = required_connection(definitions, name, ConnectionKind.AWS)
        if isinstance(found.statement, CreateConnection):
            aws = plan_aws_connection(found.statement, definitions)
    return CatalogConnection(
        type=kind,
        uri=given.get(CatalogOptions.URI),
        warehouse=given.get(CatalogOptions.WAREHOUSE),
        user=given.get(CatalogOptions.USER),
        password=secret(definitions, given.get(CatalogOptions.PASSWORD)),
        login=given.get(CatalogOptions.AUTH, Login.BASIC),
        credential=secret(definitions, given.get(CatalogOptions.CREDENTIAL)),
        token=secret(definitions, given.get(CatalogOptions.TOKEN)),
        scope=given.get(CatalogOptions.SCOPE),
        oauth2_server_uri=given.get(CatalogOptions.OAUTH2_SERVER_URI),
        aws=aws,
        signing_name=given.get(CatalogOptions.SIGNING_NAME),
        catalog_name=given.get(CatalogOptions.CATALOG_NAME),
    )


def _check_type(given: CheckedOptions, kind: CatalogType) -> None:
    """Check that the options which this type of catalog needs are given, and none that it does not support."""
    for option in _NEEDED.get(kind, ()):
        if option not in given:
            raise given.error(
                CatalogOptions.TYPE, f"a catalog of type '{kind}' needs {option.name}", f"Add {option.name} = ..."
            )
    for option in _unsupported(given, kind):
        if option in given:
            raise given.error(option, f"a catalog of type '{kind}' does not support {option.name}", "Leave it out.")
    given.need(CatalogOptions.SIGNING_NAME, CatalogOptions.AWS_CONNECTION)


def _unsupported(given: CheckedOptions, kind: CatalogType) -> list[AnySetting]:
    if kind is CatalogType.EMBEDDED:
        return [option for option in given if option is not CatalogOptions.TYPE]
    if kind is CatalogType.SQL:
        login = (CatalogOptions.USER, CatalogOptions.PASSWORD)
        return [*(option for option in _REST_ONLY if option not in login), CatalogOptions.SIGNING_NAME]
    found: list[AnySetting] = [CatalogOptions.CATALOG_NAME, *([] if kind is CatalogType.REST else _REST_ONLY)]
    return found if kind in _SIGNED else [*found, CatalogOptions.AWS_CONNECTION, CatalogOptions.SIGNING_NAME]


def _check_login(given: CheckedOptions) -> None:
    given.need(CatalogOptions.USER, CatalogOptions.PASSWORD)
    given.need(CatalogOptions.PASSWORD, CatalogOptions.USER)
    given.need(CatalogOptions.AUTH, CatalogOptions.USER)
    given.exclude(CatalogOptions.PASSWORD, CatalogOptions.CREDENTIAL, CatalogOptions.TOKEN)
    given.exclude(CatalogOptions.CREDENTIAL, CatalogOptions.TOKEN)
    for name in _LOGINS:
        given.exclude(name, CatalogOptions.SIGNING_NAME)
    if (
        CatalogOptions.SCOPE in given
        and CatalogOptions.CREDENTIAL not in given
        and given.get(CatalogOptions.AUTH) is not Login.OAUTH2
    ):
        raise given.error(CatalogOptions.SCOPE, "SCOPE needs CREDENTIAL, or AUTH = 'oauth2'")


def _check_uri(given: CheckedOptions, option: Setting[str], *schemes: str) -> None:
    """Check an address. It must not contain a password: addresses are stored and shown in messages as they are."""
    text = given.get(option)
    if text is None:
        return
    try:
        parts = urlsplit(text)
        has_login = parts.password is not None
    except ValueError as error:
        raise given.error(option, f"{option.name} is not a valid address") from error
    if has_login and not parts.scheme.startswith("sqlite"):
        raise given.error(option, f"{option.name} contains a password", "Use USER = '...', PASSWORD = SECRET name.")
    if schemes and parts.scheme not in schemes:
        starts = " or ".join(f"{scheme}://" for scheme in schemes)
        raise given.error(option, f"{option.name} has an unsupported scheme", f"It starts with {starts}.")


def _kafka(given: CheckedOptions, definitions: Definitions) -> KafkaConnection:
    given.exclude(KafkaOptions.BROKER, KafkaOptions.BROKERS)
    brokers = given.get(KafkaOptions.BROKER) or given.get(KafkaOptions.BROKERS)
    if not brokers:
        raise SqlError.at(given.where, "a connection to Kafka needs BROKER", hint="Add BROKER = 'host:9092'.")
    given.need(KafkaOptions.SASL_MECHANISM, KafkaOptions.SASL_USERNAME, KafkaOptions.SASL_PASSWORD)
    given.need(KafkaOptions.SASL_USERNAME, KafkaOptions.SASL_MECHANISM)
    given.need(KafkaOptions.SASL_PASSWORD, KafkaOptions.SASL_USERNAME)
    protocol = given.get(KafkaOptions.SECURITY_PROTOCOL, "plaintext")
    if protocol.startswith("sasl") and KafkaOptions.SASL_MECHANISM not in given:
        raise given.error(KafkaOptions.SECURITY_PROTOCOL, f"SECURITY PROTOCOL = '{protocol}' needs SASL MECHANISM")
    if KafkaOptions.SASL_MECHANISM in given and not protocol.startswith("sasl"):
        raise given.error(
            KafkaOptions.SASL_MECHANISM, "SASL MECHANISM needs a SECURITY PROTOCOL with SASL", "Write 'sasl_ssl'."
        )
    given.need(KafkaOptions.SSL_CERTIFICATE, KafkaOptions.SSL_KEY)
    given.need(KafkaOptions.SSL_KEY, KafkaOptions.SSL_CERTIFICATE)
    given.need(KafkaOptions.SSL_KEY_PASSWORD, KafkaOptions.SSL_KEY)
    for option in (option for option in given if option.name.startswith("SSL ") and not protocol.endswith("ssl")):
        raise given.error(option, f"{option.name} needs a SECURITY PROTOCOL with SSL", "Write 'ssl' or 'sasl_ssl'.")
    return KafkaConnection(
        brokers=brokers,
        security_protocol=protocol,
        mechanism=given.get(KafkaOptions.SASL_MECHANISM),
        username=given.get(KafkaOptions.SASL_USERNAME),
        password=secret(definitions, given.get(KafkaOptions.SASL_PASSWORD)),
        authority=given.get(KafkaOptions.SSL_CERTIFICATE_AUTHORITY),
        certificate=given.get(KafkaOptions.SSL_CERTIFICATE),
        key=secret(definitions, given.get(KafkaOptions.SSL_KEY)),
        key_password=secret(definitions, given.get(KafkaOptions.SSL_KEY_PASSWORD)),
    )
