"""Credentials of AWS: given ones, assumed ones, none."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs

import pytest

from calve.errors import InvalidInput
from calve.storage.aws import credentials_of
from tests.support.servers.listening import Answer, Listening, Request

ROLE = "arn:aws:iam::123456789012:role/lake"
KEYS = {"client.access-key-id": "own", "client.secret-access-key": "secret", "client.region": "eu-west-1"}


class Roles:
    """A token service: every question is answered with other credentials."""

    def __init__(self, minutes: int) -> None:
        self.minutes = minutes
        self.asked: list[dict[str, str]] = []
        self._listening = Listening(self._answer)
        self.uri, self.stop = self._listening.uri, self._listening.stop

    def _answer(self, request: Request) -> Answer:
        self.asked.append({name: values[0] for name, values in parse_qs(request.body.decode()).items()})
        end = (datetime.now(UTC) + timedelta(minutes=self.minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = f"""<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
            <AccessKeyId>assumed-{len(self.asked)}</AccessKeyId><SecretAccessKey>s</SecretAccessKey>
            <SessionToken>t</SessionToken><Expiration>{end}</Expiration>
            </Credentials></AssumeRoleResult></AssumeRoleResponse>"""
        return Answer(200, body.encode(), {"Content-Type": "text/xml"})


@pytest.fixture
def roles(monkeypatch: pytest.MonkeyPatch) -> Iterator[Roles]:
    server = Roles(minutes=60)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.uri)
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def nothing_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)


def test_keys_that_are_given_are_taken() -> None:
    found = credentials_of({**KEYS, "client.session-token": "t"}).get_frozen_credentials()
    assert (found.access_key, found.secret_key, found.token) == ("own", "secret", "t")


def test_a_role_is_assumed_with_the_keys_once_while_its_credentials_last(roles: Roles) -> None:
    found = credentials_of({**KEYS, "client.role-arn": ROLE, "client.role-session-name": "lasting"})
    assert [found.get_frozen_credentials().access_key for _ in range(2)] == ["assumed-1"] * 2
    assert [(asked["RoleArn"], asked["RoleSessionName"]) for asked in roles.asked] == [(ROLE, "lasting")]


def test_a_role_is_assumed_again_before_its_credentials_expire(roles: Roles) -> None:
    roles.minutes = 5
    found = credentials_of({**KEYS, "client.role-arn": ROLE, "client.role-session-name": "short"})
    assert [found.get_frozen_credentials().access_key for _ in range(2)] == ["assumed-1", "assumed-2"]


def test_where_there_are_none_it_is_said() -> None:
    with pytest.raises(InvalidInput, match="no AWS credentials were found"):
        credentials_of({"client.region": "nowhere-1"})
