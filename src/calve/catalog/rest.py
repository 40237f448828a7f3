"""The client of REST catalogs: pyiceberg's, with eight differences.

Every request has a time-out. The header `Retry-After` of a response 429 or 503 is respected, within bounds: the client
sends nothing before; retries are up to the caller. Tokens are fetched when they are needed and renewed before they
expire. Requests are signed with credentials that are renewed. The user's settings for the store of files win over what
the catalog vends. Neither a table nor the catalog names code to run (`guarded.py`). A commit is sent once. A table does
not exist only if the catalog itself says so.
"""

import threading
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from pydantic_core import ValidationError
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import Endpoints, RestCatalog, TableResponse
from pyiceberg.catalog.rest.auth import AuthManager
from pyiceberg.catalog.rest.response import TokenResponse, _handle_non_200_response
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    NoSuchTableError,
    OAuthError,
    ServiceUnavailableError,
    UnauthorizedError,
)
from pyiceberg.io import FileIO
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from requests import HTTPError, PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter

from calve.catalog.failures import is_told_by_catalog, problems_of
from calve.catalog.guarded import names_code, without_code
from calve.clock import Clock, SystemClock
from calve.model.numbers import number_property
from calve.storage.aws import credentials_of
from calve.storage.filesystems import NO_LOCAL_FILES, properties_for

LONGEST_SECONDS = 30.0
"""The longest wait: a server that is down for longer gets a request in every such interval."""
_BUSY = frozenset({429, 503})


class RetryAfter:
    """When a client may send its next request."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._not_before = 0.0
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Wait until the server accepts requests."""
        with self._lock:
            left = self._not_before - self._clock.monotonic()
        if left > 0:
            threading.Event().wait(left)

    def heed(self, response: Response) -> None:
        """Remember the header of a response."""
        delay = response.headers.get("Retry-After")
        if response.status_code in _BUSY and delay is not None:
            with self._lock:
                self._not_before = self._clock.monotonic() + seconds_of(delay, self._clock)


def seconds_of(delay: str, clock: Clock) -> float:
    """The seconds of a header that is a number or a date; 0 if it is neither."""
    try:
        seconds = float(delay)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(delay).timestamp() - clock.now_ms() / 1000
        except ValueError:
            return 0.0
    return min(max(seconds, 0.0), LONGEST_SECONDS)


CONNECT_MS, ANSWER_MS = "rest.client.connection-timeout-ms", "rest.client.socket-timeout-ms"
GIVEN_STORE = "calve.store"
"""Set if the properties of the store are the user's own, whatever the catalog vends."""

_DEFAULT_CONNECT_MS, _DEFAULT_ANSWER_MS = 10_000, 60_000
_DEFAULT_SCOPE = "catalog"
_RENEW_SECONDS = 60.0
_CREDENTIALS = ("access-key-id", "secret-access-key", "session-token", "role-arn", "remote-signing-enabled")
_TLS = "ssl"
_LOGINS = frozenset({_TLS, "credential", "token", "oauth2-server-uri", "header.Authorization", NO_LOCAL_FILES})
"""Settings of the user that no response of the catalog replaces: they decide who is trusted with what."""
_EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


class RestClient(RestCatalog):
    """A catalog that speaks Iceberg's REST protocol."""

    def __init__(self, name: str, **properties: str) -> None:
        self._given = dict(properties)
        self._login: RestLogin | None = None
        super().__init__(name, **properties)

    def _create_session(self) -> Session:
        session = super()._create_session()
        if self.properties.get("rest.sigv4-enabled") != "true":
            adapter = TimedAdapter(_time_outs(self.properties))
            session.mount("http://", adapter)
            session.mount("https://", adapter)
        return session

    def _create_legacy_oauth2_auth_manager(self, session: Session) -> AuthManager:
        """Pyiceberg's own requests a token immediately, without a time-out, and ignores when it expires."""
        del session
        uri = self.properties.get("oauth2-server-uri") or self.url(Endpoints.get_token, prefixed=False)
        login = RestLogin(uri, self.properties, SystemClock())
        if self._login is None or self._login.identity != login.identity:
            self._login = login
        return self._login

    def _refresh_token(self) -> None:
        if self._login is not None:
            self._login.renew()

    def _init_sigv4(self, session: Session) -> None:
        adapter = SigningAdapter(self.properties, _time_outs(self.properties))
        session.mount("http://", adapter)
        session.mount("https://", adapter)

    def _fetch_config(self) -> None:
        """The catalog's settings, without code; logins of the user win."""
        super()._fetch_config()
        own = {name: value for name, value in self._given.items() if names_code(name) or name in _LOGINS}
        self.properties = {**without_code(self.properties), **own}
        if _TLS not in own:
            self.properties.pop(_TLS, None)

    def load_table(self, identifier: str | Identifier) -> Table:
        """Load a table. Raises NoSuchTableError only if the catalog itself says that it does not exist.

        Proxies respond with 404 while the server is away: a table that was taken for dropped would stop its readers.
        """
        try:
            table: Table = super().load_table(identifier)
        except NoSuchTableError as error:
            if is_told_by_catalog(error):
                raise
            text = f"the table was not found, but the response is not the catalog's own (check its address): {error}"
            raise ServiceUnavailableError(text) from error
        return table

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Send a commit once. Pyiceberg retries after a rejected token, and reports only the last request."""
        sent_once = RestCatalog.commit_table.__wrapped__  # without the decorator of tenacity
        try:
            answer: CommitTableResponse = sent_once(self, table, requirements, updates)
        except (AuthorizationExpiredError, UnauthorizedError):
            self._refresh_token()
            raise
        return answer

    def _response_to_table(self, identifier_tuple: tuple[str, ...], table_response: TableResponse) -> Table:
        """S3 Tables returns the metadata file as the location of a new table: files would go below a file.

        Credentials for files are those of the response, never those in the table's properties.
        """
        metadata = table_response.metadata
        folder, marker, file = metadata.location.rpartition("/metadata/")
        if marker and file.endswith(".metadata.json"):
            metadata = metadata.model_copy(update={"location": folder})
        silent = metadata.model_copy(update={"properties": {}})
        table = super()._response_to_table(identifier_tuple, table_response.model_copy(update={"metadata": silent}))
        table.metadata = metadata
        return table

    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        own = {name: value for name, value in self._given.items() if name.startswith("s3.") or name == NO_LOCAL_FILES}
        offered = without_code(properties)
        if GIVEN_STORE in self._given or any(f"s3.{name}" in own for name in ("access-key-id", "role-arn")):
            refused = {f"{prefix}.{name}" for prefix in ("s3", "client") for name in _CREDENTIALS}
            offered = {name: value for name, value in offered.items() if name not in refused}
        made = super()._load_file_io({**offered, **own}, location)
        made.properties = dict(properties_for("", made.properties))  # without a place that only this process may name
        return made


def checks_requirements_itself(catalog: Catalog) -> bool:
    """Whether the catalog's server checks the requirements of a commit, which then must be those of the protocol."""
    return isinstance(catalog, RestCatalog)


class RestLogin(AuthManager):
    """A bearer token: a given one, or one for a client's id and secret, renewed before it expires."""

    def __init__(self, uri: str, properties: Mapping[str, str], clock: Clock) -> None:
        self._uri, self._clock = uri, clock
        self._time_outs = _time_outs(properties)
        self._credential = properties.get("credential")
        self._form = {"grant_type": "client_credentials", "scope": properties.get("scope") or _DEFAULT_SCOPE}
        self._form |= {name: properties[name] for name in ("audience", "resource") if name in properties}
        self._token = properties.get("token")
        self.identity = (uri, self._credential, self._form, self._token)
        self._renew_at: float | None = None
        self._lock = threading.Lock()

    def auth_header(self) -> str | None:
        """The header; None leaves the request as it is."""
        with self._lock:
            late = self._renew_at is not None and self._clock.monotonic() >= self._renew_at
            if self._credential is not None and (self._token is None or late):
                self._fetch(self._credential)
            return None if self._token is None else f"Bearer {self._token}"

    def renew(self) -> None:
        """Fetch another token with the next request: this one was rejected."""
        with self._lock:
            if self._credential is not None:
                self._token = None

    def _fetch(self, credential: str) -> None:
        client, colon, secret = credential.partition(":")
        named = {"client_id": client, "client_secret": secret} if colon else {"client_secret": credential}
        with Session() as session:
            adapter = TimedAdapter(self._time_outs)
            session.mount("http://", adapter)
            session.mount("https://", adapter)
            response = session.post(self._uri, data={**self._form, **named})
        try:
            response.raise_for_status()
        except HTTPError as error:
            _handle_non_200_response(error, {400: OAuthError, 401: OAuthError})
        try:
            answer = TokenResponse.model_validate_json(response.text)
        except ValidationError as error:  # which quotes the response
            raise OAuthError(f"the token server sent no valid token: {problems_of(error)}") from None
        self._token = answer.access_token
        lifetime = answer.expires_in
        early = None if lifetime is None else min(_RENEW_SECONDS, lifetime / 4)
        self._renew_at = None if lifetime is None or early is None else self._clock.monotonic() + lifetime - early


class TimedAdapter(HTTPAdapter):
    """Sends requests with a time-out, and not before the server accepts them. Nothing is sent twice."""

    def __init__(self, time_outs: tuple[float, float]) -> None:
        super().__init__()
        self._time_outs = time_outs
        self._pace = RetryAfter(SystemClock())

    def send(self, request: PreparedRequest, *arguments: Any, **settings: Any) -> Response:
        if not arguments:
            settings["timeout"] = settings.get("timeout") or self._time_outs
        self._pace.wait()
        response = super().send(request, *arguments, **settings)
        self._pace.heed(response)
        return response


class SigningAdapter(TimedAdapter):
    """Signs every request with version 4 of AWS's signatures."""

    def __init__(self, properties: Mapping[str, str], time_outs: tuple[float, float]) -> None:
        super().__init__(time_outs)
        self._credentials = credentials_of(properties)
        self._region = properties.get("rest.signing-region") or properties.get("client.region") or ""
        self._service = properties.get("rest.signing-name") or "execute-api"

    def add_headers(self, request: PreparedRequest, **_: Any) -> None:
        """Replace the headers by signed ones."""
        from botocore.auth import SigV4Auth  # noqa: PLC0415 - an extra, which `credentials_of` has found
        from botocore.awsrequest import AWSRequest  # noqa: PLC0415 - the same

        request.headers.pop("Connection", None)  # proxies change it
        request.headers.pop("Authorization", None)
        if not request.body:
            request.headers["x-amz-content-sha256"] = _EMPTY_SHA256
        url, query = str(request.url).partition("?")[0], urlsplit(str(request.url)).query
        signed = AWSRequest(
            method=request.method,
            url=url,
            params=dict(parse_qsl(query)),
            data=request.body,
            headers=dict(request.headers),
        )
        SigV4Auth(self._credentials.get_frozen_credentials(), self._service, self._region).add_auth(signed)
        request.headers.update(dict(signed.headers.items()))


def _time_outs(properties: Mapping[str, str]) -> tuple[float, float]:
    """Seconds to connect, and between two bytes of a response."""
    connect = number_property(properties, CONNECT_MS, _DEFAULT_CONNECT_MS) or _DEFAULT_CONNECT_MS
    answer = number_property(properties, ANSWER_MS, _DEFAULT_ANSWER_MS) or _DEFAULT_ANSWER_MS
    return connect / 1000, answer / 1000
