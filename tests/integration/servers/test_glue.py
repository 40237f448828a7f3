"""Glue: what goes over the wire, to a server that checks signatures and knows one database."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from calve.definitions.workplace import Workplace, workplace
from calve.errors import TransientError
from calve.lake import connect
from calve.sql.parser import parse
from calve.statements.execute import execute
from tests.integration.servers.test_logins import no_spark
from tests.support.servers.listening import Answer, Listening, Request
from tests.support.servers.logins import Signatures

KEYS = Signatures("glue-key", "wolfram-glue-key", "eu-west-1", "glue")


@pytest.fixture
def glue() -> Iterator[Listening]:
    def handle(request: Request) -> Answer:
        problem = KEYS.problem(request)
        if problem is not None:
            return Answer.of_json(400, {"__type": f"{problem[0]}Exception", "message": problem[1]})
        assert request.header("X-Amz-Target") == "AWSGlue.GetDatabases"
        return Answer.of_json(200, {"DatabaseList": [{"Name": "shop"}]})

    server = Listening(handle)
    yield server
    server.stop()


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return workplace(tmp_path / "home", no_spark, {})


def create(place: Workplace, glue: Listening, secret: str) -> None:
    keys = f"ACCESS KEY ID = '{KEYS.key}', SECRET ACCESS KEY = '{secret}', REGION = '{KEYS.region}'"
    for statement in parse(f"""
        CREATE CONNECTION a TO AWS ({keys});
        CREATE CONNECTION g TO ICEBERG CATALOG (TYPE = 'glue', URI = '{glue.uri}', AWS CONNECTION = a);
    """):
        execute(place, statement)


def test_requests_are_signed_for_the_region_of_the_aws_connection(place: Workplace, glue: Listening) -> None:
    create(place, glue, KEYS.secret)
    assert len(place.store.all()) == 3  # with the secret of the first


def test_a_wrong_key_says_so(place: Workplace, glue: Listening) -> None:
    with pytest.raises(TransientError) as raised:
        create(place, glue, "tantalum")
    assert raised.value.hint.startswith("The secret key is wrong")
    assert "tantalum" not in str(raised.value)


def test_a_region_that_is_missing_is_named(glue: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "none")
    with pytest.raises(TransientError) as raised:
        connect(type="glue", **{"glue.endpoint": glue.uri}).open()
    assert raised.value.hint == "Set REGION of the AWS connection."
