"""Servers that say when they want to be asked again."""

import time
from collections.abc import Iterator

import pytest
import requests

from calve.catalog.rest import LONGEST_SECONDS, TimedAdapter, seconds_of
from calve.clock import SystemClock
from tests.support.servers.listening import Answer, Listening, Request


class Frozen(SystemClock):
    def now_ms(self) -> int:
        return 1_700_000_000_000  # 2023-11-14 22:13:20


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ("2", 2),
        ("0.5", 0.5),
        ("3600", LONGEST_SECONDS),
        ("-1", 0),
        ("Tue, 14 Nov 2023 22:13:24 GMT", 4),
        ("Tue, 14 Nov 2023 22:00:00 GMT", 0),
        ("soon", 0),
    ],
)
def test_numbers_and_dates_are_understood_within_bounds(told: str, seconds: float) -> None:
    assert seconds_of(told, Frozen()) == seconds


@pytest.fixture
def busy() -> Iterator[tuple[Listening, list[float]]]:
    """Answers what the path says, and asks for half a second."""
    came: list[float] = []

    def handle(request: Request) -> Answer:
        came.append(time.monotonic())
        return Answer(int(request.path[1:]), headers={"Retry-After": "0.5"})

    server = Listening(handle)
    yield server, came
    server.stop()


@pytest.mark.parametrize(("status", "waits"), [(503, True), (429, True), (500, False), (200, False)])
def test_a_client_that_was_told_to_wait_sends_nothing_before(
    busy: tuple[Listening, list[float]], status: int, *, waits: bool
) -> None:
    server, came = busy
    with requests.Session() as session:
        session.mount("http://", TimedAdapter((5, 5)))
        for _ in range(2):
            assert session.get(f"{server.uri}/{status}").status_code == status
    first, second = came
    assert (second - first >= 0.5) is waits
