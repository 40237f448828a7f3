"""A connection as pyiceberg's properties. Their values contain secrets: clients get them, and nothing prints them.

Also warns of logins that are sent without encryption.
"""

import logging
from base64 import b64encode
from collections.abc import Callable
from functools import lru_cache
from urllib.parse import urlsplit

from sqlalchemy import make_url

from calve.catalog.guarded import is_loopback
from calve.catalog.rest import GIVEN_STORE
from calve.model.connection import AwsConnection, CatalogConnection, CatalogType, Login, SecretRef

DEFAULT_REGION = "us-east-1"

Reveal = Callable[[SecretRef], str]


def catalog_properties(connection: CatalogConnection, store: AwsConnection | None, reveal: Reveal) -> dict[str, str]:
    """Properties of the catalog's client; empty for the embedded catalog. `store` wins over vended credentials."""
    if connection.type is CatalogType.EMBEDDED:
        return {}
    kind = CatalogType.REST if connection.type is CatalogType.S3TABLES else connection.type
    found: dict[str, str | None] = {
        "type": kind.value,
        "uri": _uri(connection, reveal),
        "warehouse": connection.warehouse,
        "catalog-name": connection.catalog_name,
    }
    found |= _login(connection, reveal) | _signing(connection) | _aws(connection.aws, reveal) | _store(store, reveal)
    if connection.type is CatalogType.S3TABLES:
        found["client.region"] = _region(connection.aws)
    if connection.type is CatalogType.GLUE:
        found["glue.endpoint"] = found.pop("uri")
    return {name: value for name, value in found.items() if value is not None}


def store_properties(aws: AwsConnection, reveal: Reveal) -> dict[str, str]:
    """The properties for files of a store."""
    return {name: value for name, value in _aws(aws, reveal).items() if value is not None}


def _uri(connection: CatalogConnection, reveal: Reveal) -> str | None:
    if connection.type is CatalogType.SQL and connection.uri and connection.user and connection.password:
        url = make_url(connection.uri).set(username=connection.user, password=reveal(connection.password))
        return url.render_as_string(hide_password=False)
    if connection.uri or connection.type is not CatalogType.S3TABLES:
        return connection.uri
    return f"https://s3tables.{_region(connection.aws)}.amazonaws.com/iceberg"


def _region(aws: AwsConnection | None) -> str:
    return (aws.region if aws else None) or DEFAULT_REGION


def _login(connection: CatalogConnection, reveal: Reveal) -> dict[str, str | None]:
    found: dict[str, str | None] = {"scope": connection.scope, "oauth2-server-uri": connection.oauth2_server_uri}
    if connection.type is CatalogType.REST and connection.user is not None and connection.password is not None:
        pair = f"{connection.user}:{reveal(connection.password)}"
        if connection.login is Login.OAUTH2:
            found["credential"] = pair
        else:
            found["header.Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    if connection.credential is not None:
        found["credential"] = reveal(connection.credential)
    if connection.token is not None:
        found["token"] = reveal(connection.token)
    return found


def _signing(connection: CatalogConnection) -> dict[str, str | None]:
    """Requests are signed unless there is another login: then the AWS connection is for files only."""
    logins = (connection.password, connection.credential, connection.token)
    if connection.aws is None or connection.type not in {CatalogType.REST, CatalogType.S3TABLES} or any(logins):
        return {}
    usual = "s3tables" if connection.type is CatalogType.S3TABLES else "execute-api"
    return {
        "rest.sigv4-enabled": "true",
        "rest.signing-name": connection.signing_name or usual,
        "rest.signing-region": _region(connection.aws),
    }


def _aws(aws: AwsConnection | None, reveal: Reveal) -> dict[str, str | None]:
    if aws is None:
        return {}
    found: dict[str, str | None] = {
        "client.region": aws.region,
        "client.access-key-id": aws.access_key_id,
        "client.secret-access-key": reveal(aws.secret_access_key) if aws.secret_access_key else None,
        "client.session-token": reveal(aws.session_token) if aws.session_token else None,
        "client.role-arn": aws.role_arn,
        "client.role-session-name": aws.role_session_name,
        "s3.endpoint": aws.endpoint,
    }
    return found


def _store(aws: AwsConnection | None, reveal: Reveal) -> dict[str, str | None]:
    """The same under the names for files only: requests to the catalog are signed with other credentials."""
    if aws is None:
        return {}
    settings = {name.replace("client.", "s3."): value for name, value in _aws(aws, reveal).items()}
    if aws.access_key_id and not aws.session_token:
        settings["s3.session-token"] = ""  # else that of the catalog's credentials would be used
    return settings | {GIVEN_STORE: "true"}


_log = logging.getLogger("calve")


@lru_cache(maxsize=64)
def warn_of_open_login(uri: str, what: str) -> None:
    """Warn, once, of a login that is sent to `uri` without encryption, unless it stays on this machine."""
    parts = urlsplit(uri)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        _log.warning("the login of %s is sent without encryption to %s: use https", what, parts.hostname)
