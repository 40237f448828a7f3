"""Connections to a catalog that checks logins: each kind works with the right secret, and says what is wrong else."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import pytest

from calve.catalog.rest import RestLogin
from calve.definitions.workplace import Workplace, workplace
from calve.errors import TransientError
from calve.lake import connect
from calve.sql.parser import parse
from calve.statements.answers import TextAnswer
from calve.statements.execute import execute
from tests.integration.servers.conftest import PASSWORD, USER
from tests.support.clocks import ManualClock
from tests.support.servers.java import free_port
from tests.support.servers.lakehouse import BUCKET, Lakehouse, new_namespace
from tests.support.servers.logins import Signatures, TokenServer, bearer
from tests.support.servers.proxy import Fault, Proxy, anything, refused, slow
from tests.support.servers.store import KEY, REGION, SECRET

CLIENT, CLIENT_SECRET, SCOPE = "calve-client", "wolfram:client:secret", "tables"
SIGNING = Signatures("catalog-key", "wolfram-catalog-key", "eu-west-1", "s3tables")


def no_spark() -> NoReturn:
    raise AssertionError("Spark is not needed here")


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return workplace(tmp_path / "home", no_spark, {})


@pytest.fixture
def tokens() -> Iterator[TokenServer]:
    server = TokenServer(CLIENT, CLIENT_SECRET, SCOPE, seconds=3600)
    yield server
    server.stop()


Doors = Callable[..., Proxy]


@pytest.fixture
def guarded(lakehouse: Lakehouse) -> Iterator[Doors]:
    made: list[Proxy] = []

    def guard(check: Callable[..., object]) -> Proxy:
        made.append(lakehouse.guarded(check))  # type: ignore[arg-type]
        return made[-1]

    yield guard
    for proxy in made:
        proxy.stop()


def answer(place: Workplace, text: str) -> str:
    outcomes = [execute(place, statement) for statement in parse(text)]
    assert isinstance(outcomes[-1], TextAnswer)
    return outcomes[-1].text


def rest(uri: str, options: str) -> str:
    return f"CREATE CONNECTION c TO ICEBERG CATALOG (TYPE = 'rest', URI = '{uri}', {options}); VALIDATE CONNECTION c"


def aws(key: str, secret: str, region: str, more: str = "") -> str:
    options = f"ACCESS KEY ID = '{key}', SECRET ACCESS KEY = '{secret}', REGION = '{region}'{more}"
    return f"CREATE CONNECTION a TO AWS ({options});"


def test_a_user_and_a_password(place: Workplace, door: Proxy) -> None:
    assert answer(place, rest(door.uri, f"USER = '{USER}', PASSWORD = '{PASSWORD}'")) == 'connection "c" works'
    assert all(request.header("Authorization").startswith("Basic ") for request in door.seen)


@pytest.mark.parametrize("login", ["CREDENTIAL = '{0}:{1}'", "USER = '{0}', PASSWORD = '{1}', AUTH = 'oauth2'"])
def test_a_client_that_gets_a_token(login: str, place: Workplace, tokens: TokenServer, guarded: Doors) -> None:
    door = guarded(bearer(tokens.valid))
    server = f", SCOPE = '{SCOPE}', OAUTH2 SERVER URI = '{tokens.uri}'"
    assert answer(place, rest(door.uri, login.format(CLIENT, CLIENT_SECRET) + server)) == 'connection "c" works'
    assert tokens.issued == 2, "one for each time that it was tried, not for each request"


def test_a_token(place: Workplace, guarded: Doors) -> None:
    door = guarded(bearer({"given"}.__contains__))
    assert answer(place, rest(door.uri, "TOKEN = 'given'")) == 'connection "c" works'


@pytest.mark.parametrize("kind", ["TYPE = 'rest', SIGNING NAME = 's3tables'", "TYPE = 's3tables', WAREHOUSE = 'arn'"])
def test_signed_requests(kind: str, place: Workplace, guarded: Doors) -> None:
    door = guarded(SIGNING.in_json)
    keys = aws(SIGNING.key, SIGNING.secret, SIGNING.region)
    create = f"CREATE CONNECTION c TO ICEBERG CATALOG ({kind}, URI = '{door.uri}', AWS CONNECTION = a)"
    assert answer(place, f"{keys} {create}; VALIDATE CONNECTION c") == 'connection "c" works'


@pytest.mark.parametrize(
    ("key", "secret", "region", "hint"),
    [
        (SIGNING.key, "wrong", SIGNING.region, "The secret key is wrong"),
        ("wrong", SIGNING.secret, SIGNING.region, "The access key id is unknown"),
        (SIGNING.key, SIGNING.secret, "us-east-2", "The region is wrong"),
    ],
)
def test_a_wrong_signature_says_what_is_wrong(
    key: str, secret: str, region: str, hint: str, place: Workplace, guarded: Doors
) -> None:
    door = guarded(SIGNING.in_json)
    create = f"CREATE CONNECTION c TO ICEBERG CATALOG (TYPE = 's3tables', WAREHOUSE = 'arn', URI = '{door.uri}', "
    with pytest.raises(TransientError) as raised:
        answer(place, f"{aws(key, secret, region)} {create} AWS CONNECTION = a)")
    assert hint in raised.value.hint
    assert SIGNING.secret not in str(raised.value)


def test_a_wrong_login_says_so_and_stores_nothing(place: Workplace, door: Proxy) -> None:
    with pytest.raises(TransientError, match="connecting to the catalog at") as raised:
        answer(place, rest(door.uri, f"USER = '{USER}', PASSWORD = 'tantalum'"))
    assert raised.value.hint.startswith("The catalog does not accept the login")
    assert "tantalum" not in str(raised.value)
    assert not place.store.all()


def test_a_refused_client_says_so(place: Workplace, tokens: TokenServer, guarded: Doors) -> None:
    door = guarded(bearer(tokens.valid))
    server = f"SCOPE = '{SCOPE}', OAUTH2 SERVER URI = '{tokens.uri}'"
    with pytest.raises(TransientError) as raised:
        answer(place, rest(door.uri, f"CREDENTIAL = '{CLIENT}:tantalum', {server}"))
    assert raised.value.hint.startswith("The token server refused the client")
    assert "tantalum" not in str(raised.value)


def test_an_address_where_nothing_answers_says_so(place: Workplace) -> None:
    with pytest.raises(TransientError) as raised:
        answer(place, rest(f"http://127.0.0.1:{free_port()}", "TOKEN = 't'"))
    assert raised.value.hint.startswith("Nothing answers at that address")


def test_a_catalog_that_takes_too_long_is_given_up(lakehouse: Lakehouse) -> None:
    lakehouse.catalog_proxy.faults.append(Fault(anything, slow(3)))
    lake = connect(**lakehouse.properties, **{"rest.client.socket-timeout-ms": "200"})
    with pytest.raises(TransientError) as raised:
        lake.open()
    assert raised.value.hint.startswith("The request timed out")


def test_a_clock_that_is_wrong_is_named(lakehouse: Lakehouse) -> None:
    late = refused(403, Date="Sun, 15 Nov 2020 00:00:00 GMT")
    lakehouse.catalog_proxy.faults.append(Fault(anything, late))
    with pytest.raises(TransientError) as raised:
        connect(**lakehouse.properties).open()
    assert raised.value.hint.startswith("The clock of this machine is ")


def test_a_token_is_renewed_before_it_expires(tokens: TokenServer) -> None:
    tokens.seconds, clock = 120, ManualClock()
    login = RestLogin(tokens.uri, {"credential": f"{CLIENT}:{CLIENT_SECRET}", "scope": SCOPE}, clock)
    first = login.auth_header()
    clock.seconds = 89
    assert login.auth_header() == first
    clock.seconds = 91
    assert login.auth_header() != first
    assert tokens.issued == 2


def test_a_token_that_was_revoked_is_replaced_and_the_request_repeated(
    lakehouse: Lakehouse, tokens: TokenServer, guarded: Doors
) -> None:
    door = guarded(bearer(tokens.valid))
    login = {"credential": f"{CLIENT}:{CLIENT_SECRET}", "scope": SCOPE, "oauth2-server-uri": tokens.uri}
    catalog = connect(**{**lakehouse.properties, "uri": door.uri, **login}).open()
    catalog.create_namespace(new_namespace())
    tokens.revoke()
    catalog.create_namespace(new_namespace())
    assert tokens.issued == 2


# ---- stores


def try_store(place: Workplace, lakehouse: Lakehouse, secret: str = SECRET, region: str = REGION) -> str:
    keys = aws(KEY, secret, region, f", ENDPOINT = '{lakehouse.store.uri}'")
    return answer(place, f"{keys} VALIDATE CONNECTION a")


def test_keys_of_a_store_are_tried_by_validate(place: Workplace, lakehouse: Lakehouse) -> None:
    assert try_store(place, lakehouse) == 'connection "a" works'


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [({"secret": "tantalum"}, "The secret key is wrong"), ({"region": "us-west-1"}, "The region is wrong")],
)
def test_a_store_says_what_is_wrong_with(
    wrong: dict[str, str], hint: str, place: Workplace, lakehouse: Lakehouse
) -> None:
    with pytest.raises(TransientError) as raised:
        try_store(place, lakehouse, **wrong)
    assert hint in raised.value.hint
    assert "tantalum" not in str(raised.value)


def test_a_store_whose_clock_differs_says_so(place: Workplace, lakehouse: Lakehouse) -> None:
    lakehouse.store.signatures.skew = timedelta(hours=1)
    with pytest.raises(TransientError) as raised:
        try_store(place, lakehouse)
    assert raised.value.hint == "The clock of this machine is wrong: set it."


def test_expired_credentials_of_a_store_say_so(place: Workplace, lakehouse: Lakehouse) -> None:
    lakehouse.store.signatures.expired = True
    with pytest.raises(TransientError) as raised:
        try_store(place, lakehouse)
    assert raised.value.hint.startswith("The session token has expired")


def test_a_bucket_that_is_missing_is_named_when_it_is_the_warehouse(place: Workplace, lakehouse: Lakehouse) -> None:
    keys = aws(KEY, SECRET, REGION, f", ENDPOINT = '{lakehouse.store.uri}'")
    options = f"URI = '{lakehouse.catalog_proxy.uri}', AWS CONNECTION = a, WAREHOUSE = 's3://missing/tables'"
    with pytest.raises(TransientError, match="listing the namespaces") as raised:
        answer(place, f"{keys} CREATE CONNECTION c TO ICEBERG CATALOG (TYPE = 'rest', {options})")
    assert raised.value.hint.startswith("The bucket does not exist")


def test_a_bucket_that_is_missing_is_named_when_the_state_of_a_sink_goes_there(
    place: Workplace, lakehouse: Lakehouse
) -> None:
    keys = aws(KEY, SECRET, REGION, f", ENDPOINT = '{lakehouse.store.uri}'")
    lake = f"CREATE CONNECTION c TO ICEBERG CATALOG (TYPE = 'rest', URI = '{lakehouse.catalog_proxy.uri}')"
    orders = "CREATE SOURCE o FROM LOAD GENERATOR orders (ROWS = 1)"
    sink = "CREATE SINK s FROM o TO ICEBERG CATALOG c USING AWS CONNECTION a NAMESPACE n TABLE t"
    with pytest.raises(TransientError, match="looking at the state location s3://missing/state failed") as raised:
        answer(place, f"{keys} {lake}; {orders}; {sink} WITH (STATE LOCATION = 's3://missing/state')")
    assert raised.value.hint.startswith("The bucket does not exist")
    answer(place, f"{sink} WITH (STATE LOCATION = 's3://{BUCKET}/state')")
