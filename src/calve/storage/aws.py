"""AWS features that pyarrow lacks: credentials for signing requests, roles to assume, and conditional writes.

Credentials come from the properties (keys, a role to assume, a profile) or from where AWS's own tools look for them,
and are renewed before they expire. Needs boto3, the extra `aws`.
"""

import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from calve.errors import InvalidInput
from calve.model.instants import millis_of

CONNECT_SECONDS, ANSWER_SECONDS = 10, 60
_PREFIXES = ("s3.", "client.")
_GLUE_SESSION = "botocore_session"
"""Property of pyiceberg's Glue client."""
_TAKEN = 412
_BUSY = 409


def credentials_of(properties: Mapping[str, str]) -> Any:
    """Credentials of botocore for the catalog. Raises InvalidInput when there are none."""
    found = _session(tuple(sorted(_named(properties, "client.").items()))).get_credentials()
    if found is None:
        raise InvalidInput(
            "no AWS credentials were found",
            detail="The connection has none, and neither do the environment, AWS's files and the instance metadata.",
            hint="Give the AWS connection ACCESS KEY ID and SECRET ACCESS KEY, or ASSUME ROLE ARN.",
        )
    return found


def glue_properties(properties: Mapping[str, str]) -> dict[str, Any]:
    """The property that makes the client of Glue assume a role; pyiceberg's handles keys and profiles by itself."""
    if not properties.get("client.role-arn"):
        return {}
    return {_GLUE_SESSION: _session(tuple(sorted(_named(properties, "client.").items())))}


def assumed(io_properties: Mapping[str, str]) -> Mapping[str, str]:
    """Replace the role in a store's properties by credentials of that role. Raises OSError.

    They are valid for ten minutes at least; callers that keep files open for longer ask again.
    """
    if not any(io_properties.get(f"{prefix}role-arn") for prefix in _PREFIXES):
        return io_properties
    errors = _module("botocore.exceptions")
    try:
        found = _session(_of_store(io_properties)).get_credentials().get_frozen_credentials()
    except (errors.ClientError, errors.BotoCoreError) as error:
        raise OSError(str(error)) from error
    named = {"access-key-id": found.access_key, "secret-access-key": found.secret_key, "session-token": found.token}
    replaced = {prefix + name for prefix in _PREFIXES for name in (*named, "role-arn", "role-session-name")}
    kept = {name: value for name, value in io_properties.items() if name not in replaced}
    return kept | {f"s3.{name}": value for name, value in named.items()}


def put_first(location: str, data: bytes, io_properties: Mapping[str, str]) -> bool:
    """Write an S3 object unless one of that name exists; False when it does. Raises OSError."""
    parts = urlsplit(location, allow_fragments=False)
    errors = _module("botocore.exceptions")
    client = _client(tuple(sorted(io_properties.items())))
    try:
        client.put_object(Bucket=parts.netloc, Key=location.split("/", 3)[3], Body=data, IfNoneMatch="*")
    except errors.ClientError as error:
        if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") in {_TAKEN, _BUSY}:
            return False
        raise OSError(str(error)) from error
    except errors.BotoCoreError as error:
        raise OSError(str(error)) from error
    return True


def list_objects(bucket: str, prefix: str, io_properties: Mapping[str, str]) -> Iterator[tuple[str, int, int]]:
    """Key, size and time of the last change, in milliseconds, of the objects below a prefix; a page in memory.

    Folders are left out: stores that keep objects as files list them, too, without size and time. Raises OSError.
    """
    errors = _module("botocore.exceptions")
    pages = _client(tuple(sorted(io_properties.items()))).get_paginator("list_objects_v2")
    try:
        for page in pages.paginate(Bucket=bucket, Prefix=prefix):
            for found in page.get("Contents", ()):
                if found["Key"].endswith("/"):
                    continue
                if not {"Size", "LastModified"} <= found.keys():
                    raise OSError(f"the store lists {found['Key']} without its size or time")
                yield found["Key"], found["Size"], millis_of(found["LastModified"])
    except (errors.ClientError, errors.BotoCoreError) as error:
        raise OSError(str(error)) from error


def is_available() -> bool:
    """Whether botocore is installed."""
    return importlib.util.find_spec("botocore") is not None


@lru_cache(maxsize=16)
def _client(io_properties: tuple[tuple[str, str], ...]) -> Any:
    given = dict(io_properties)
    config = _module("botocore.config").Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=ANSWER_SECONDS,
        retries={"total_max_attempts": 3, "mode": "standard"},
        s3={"addressing_style": "path" if given.get("s3.endpoint") else "auto"},
    )
    session = _session(_of_store(given))
    return session.create_client("s3", endpoint_url=given.get("s3.endpoint"), config=config)


def _of_store(io_properties: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The properties that credentials for files come from: those with the prefix `s3.` win."""
    own = _named(io_properties, "s3.")
    named = own if {"access-key-id", "role-arn"} & own.keys() else _named(io_properties, "client.") | own
    return tuple(sorted(named.items()))


def _named(properties: Mapping[str, str], prefix: str) -> dict[str, str]:
    wanted = ("access-key-id", "secret-access-key", "session-token", "region", "role-arn", "role-session-name")
    found = {name: properties.get(prefix + name) for name in (*wanted, "profile-name")}
    return {name: value for name, value in found.items() if value}


@lru_cache(maxsize=16)
def _session(named: tuple[tuple[str, str], ...]) -> Any:
    given = dict(named)
    session = _module("botocore.session").Session(profile=given.get("profile-name"))
    if "region" in given:
        session.set_config_variable("region", given["region"])
    if "access-key-id" in given:
        keys = (given["access-key-id"], given.get("secret-access-key"), given.get("session-token"))
        session.set_credentials(*keys)
    if "role-arn" in given:
        credentials = _module("botocore.credentials")
        fetcher = credentials.AssumeRoleCredentialFetcher(
            client_creator=session.create_client,
            source_credentials=session.get_credentials(),
            role_arn=given["role-arn"],
            extra_args={"RoleSessionName": given.get("role-session-name", "calve")},
        )
        assumed = credentials.DeferredRefreshableCredentials(fetcher.fetch_credentials, method="assume-role")
        session = _module("botocore.session").Session()
        session.set_config_variable("region", given.get("region"))
        session._credentials = assumed  # noqa: SLF001 - there is no public way to set refreshable credentials
    return session


def _module(name: str) -> Any:
    """Import a module of botocore, which is an extra."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InvalidInput(
            "signed requests, roles and state locations in S3 need the package boto3",
            hint='Install it with pip install "calve[aws]".',
        ) from error
