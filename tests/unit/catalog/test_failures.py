import errno
import sqlite3
from collections.abc import Iterator

import pytest
from pyiceberg.catalog.rest import ListTablesResponse
from pyiceberg.exceptions import OAuthError
from requests import HTTPError
from sqlalchemy.exc import OperationalError

from calve.catalog.connect import open_catalog
from calve.catalog.failures import trying
from calve.catalog.rest import RestLogin
from calve.clock import SystemClock
from calve.errors import TransientError
from tests.support.servers.listening import Answer, Listening, Request


def sqlite_error(code: int) -> OperationalError:
    cause = sqlite3.OperationalError("what SQLite says")
    cause.sqlite_errorcode = code
    return OperationalError("UPDATE", {}, cause)


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (PermissionError(errno.EACCES, "denied"), "permission to write"),
        (OSError(errno.EROFS, "read-only"), "mount it for writing"),
        (OSError(errno.ENOSPC, "full"), "free some space"),
        (sqlite_error(sqlite3.SQLITE_FULL), "free some space"),
        (sqlite_error(sqlite3.SQLITE_READONLY), "read-only"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), ""),
    ],
)
def test_what_cannot_be_read_may_be_read_later_and_says_what_helps(error: Exception, hint: str) -> None:
    with pytest.raises(TransientError, match="loading failed") as raised, trying("loading"):
        raise error
    assert hint in raised.value.hint
    assert bool(hint) == bool(raised.value.hint)


def test_a_mistake_of_the_programme_stays_one() -> None:
    with pytest.raises(KeyError), trying("loading"):
        raise KeyError("x")


def test_only_a_response_that_says_not_implemented_is_no_mistake_of_the_programme() -> None:
    with pytest.raises(NotImplementedError), trying("loading"):
        raise NotImplementedError("a cast that Arrow cannot do")
    with pytest.raises(TransientError, match="loading failed"), trying("loading"):
        raise NotImplementedError("NotImplemented: 501") from HTTPError("501")


SECRET = "s3cr3t-0f-th3-t0k3n"  # noqa: S105 - nobody uses it
BODIES = {
    "no type": f'{{"access_token": "{SECRET}"}}',
    "no JSON": f"access_token={SECRET}",
    "a list": f'["{SECRET}"]',
}


@pytest.fixture(params=BODIES)
def telling(request: pytest.FixtureRequest) -> Iterator[Listening]:
    """Answers every request with a secret in a body that is not the expected one."""
    body = BODIES[request.param].encode()

    def handle(_: Request) -> Answer:
        return Answer(200, body)

    server = Listening(handle)
    yield server
    server.stop()


def test_a_token_that_cannot_be_used_is_not_told_to_anybody(telling: Listening) -> None:
    login = RestLogin(telling.uri, {"credential": "client:password"}, SystemClock())
    with pytest.raises(OAuthError, match="the token server sent no valid token") as raised:
        login.auth_header()
    assert SECRET not in str(raised.value)
    assert raised.value.__suppress_context__, "a traceback would show it"


def test_a_response_that_is_not_the_expected_one_is_described_without_its_contents() -> None:
    with pytest.raises(TransientError, match="listing failed") as raised, trying("listing"):
        ListTablesResponse.model_validate_json(f'{{"identifiers": [{{"name": 1, "token": "{SECRET}"}}]}}')
    assert "identifiers.0.namespace: Field required" in raised.value.detail
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("telling", ["no JSON", "a list"], indirect=True)
def test_a_page_of_a_proxy_in_place_of_the_settings_is_no_mistake_of_the_user(telling: Listening) -> None:
    with pytest.raises(TransientError, match="connecting to the catalog") as raised:
        open_catalog({"type": "rest", "uri": telling.uri})
    assert raised.value.detail.startswith("ValidationError: ConfigResponse: ")
    assert SECRET not in str(raised.value)
