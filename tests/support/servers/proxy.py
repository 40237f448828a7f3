"""A proxy between a client and a server: checks logins and injects faults.

A request triggers the first matching fault that is not used up, then goes to the check, then to the server. Headers,
path and body are forwarded unchanged, except for what `adapt` changes.
"""

import gzip
import http.client
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tests.support.servers.listening import Answer, Listening, Request

Check = Callable[[Request], Answer | None]
"""None lets a request pass."""
Act = Callable[[Request, Callable[[Request], Answer]], Answer]
"""What happens to a request instead of being passed on; it may pass it on itself."""

_OWN = frozenset({"connection", "expect", "keep-alive", "transfer-encoding", "content-length"})
_ANSWER_SECONDS = 60


@dataclass
class Fault:
    """Happens to matching requests that no fault before it takes: not to the first `after`, then to `times` of them."""

    on: Callable[[Request], bool]
    act: Act
    after: int = 0
    times: int = 1
    met: int = field(default=0, init=False)

    def takes(self, request: Request) -> bool:
        """Whether this request is hit; counts it."""
        if not self.on(request):
            return False
        self.met += 1
        return self.after < self.met <= self.after + self.times


def anything(_: Request) -> bool:
    return True


def commits(request: Request) -> bool:
    """Commits to tables of a REST catalog."""
    return request.method == "POST" and "/tables/" in request.path


def writes(request: Request) -> bool:
    """Uploads to a store."""
    return request.method in {"PUT", "POST"}


def refused(status: int, **headers: str) -> Act:
    """An answer that is not the server's; nothing is done."""
    error = {"error": {"message": "told to fail", "type": "Told", "code": status}}
    return lambda _request, _forward: Answer.of_json(status, error, **headers)


def reset(_request: Request, _forward: Callable[[Request], Answer]) -> Answer:
    """The connection ends; nothing is done."""
    return Answer(0, reset=True)


def lost(request: Request, forward: Callable[[Request], Answer]) -> Answer:
    """It is done, and the connection ends."""
    forward(request)
    return Answer(0, reset=True)


def lost_with(status: int) -> Act:
    """It is done, and the answer says that it failed."""

    def act(request: Request, forward: Callable[[Request], Answer]) -> Answer:
        forward(request)
        return refused(status)(request, forward)

    return act


def unparsable(request: Request, forward: Callable[[Request], Answer]) -> Answer:
    """It is done, and the answer says nothing."""
    forward(request)
    return Answer(200, b"<html>502 behind a 200</html>", {"Content-Type": "text/html"})


def repeated(request: Request, forward: Callable[[Request], Answer]) -> Answer:
    """A proxy that did not get the answer asks again, and passes on what it hears then."""
    forward(request)
    return forward(request)


def slow(seconds: float) -> Act:
    """It is done after a while."""

    def act(request: Request, forward: Callable[[Request], Answer]) -> Answer:
        time.sleep(seconds)
        return forward(request)

    return act


def edited(change: Callable[[dict[str, Any]], None]) -> Act:
    """It is done, and the JSON of the answer is changed."""

    def act(request: Request, forward: Callable[[Request], Answer]) -> Answer:
        answer = forward(request)
        packed = answer.headers.get("Content-Encoding") == "gzip"
        body = json.loads(gzip.decompress(answer.body) if packed else answer.body)
        change(body)
        return Answer.of_json(answer.status, body)

    return act


class Proxy:
    """In front of one server. `seen` are the requests that came, in their order."""

    def __init__(
        self, upstream: str, check: Check | None = None, adapt: Callable[[Request], Request] | None = None
    ) -> None:
        self._upstream = urlsplit(upstream).netloc
        self._check = check
        self._adapt = adapt
        self._lock = threading.Lock()
        self._one_at_a_time = threading.Lock()
        self.faults: list[Fault] = []
        self.seen: list[Request] = []
        self._listening = Listening(self._handle)
        self.uri = self._listening.uri

    def _handle(self, request: Request) -> Answer:
        with self._lock:
            self.seen.append(request)
            fault = next((f for f in self.faults if f.takes(request)), None)
        return fault.act(request, self._pass) if fault else self._pass(request)

    def _pass(self, request: Request) -> Answer:
        refusal = self._check(request) if self._check else None
        if refusal is not None:
            return refusal
        adapted = self._adapt(request) if self._adapt else request
        if request.header("If-None-Match"):
            with self._one_at_a_time:  # S3 decides atomically; the server behind looks first and writes then
                return self._forwarded(adapted)
        return self._forwarded(adapted)

    def _forwarded(self, request: Request) -> Answer:
        connection = http.client.HTTPConnection(self._upstream, timeout=_ANSWER_SECONDS)
        try:
            connection.putrequest(request.method, request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                if name.lower() not in _OWN:
                    connection.putheader(name, value)
            if request.body or request.method in {"PUT", "POST"}:
                connection.putheader("Content-Length", str(len(request.body)))
            connection.endheaders(request.body or None)
            response = connection.getresponse()
            headers = {name: value for name, value in response.getheaders() if name.lower() not in _OWN}
            length = response.getheader("Content-Length")
            if request.method == "HEAD" and length:
                headers["Content-Length"] = length
            return Answer(response.status, response.read(), headers)
        except OSError:
            return Answer(502)
        finally:
            connection.close()

    def stop(self) -> None:
        """Close the port."""
        self._listening.stop()

    def start_again(self) -> None:
        """Open the same port again, after a stop."""
        self._listening = Listening(self._handle, urlsplit(self.uri).port or 0)
