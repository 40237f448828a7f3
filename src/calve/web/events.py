"""Server-sent events: one state a second for all clients.

    first listener ──► a task: state, compare, push ──► last listener leaves: the task ends

A state is computed once, however many listen, and pushed only if it differs from the last one. A client that does not
read gets the newest state when it does, not those in between.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from calve.clock import Clock
from calve.web.shapes import Json

_log = logging.getLogger(__name__)

EVERY_SECONDS = 1.0
SIGN_SECONDS = 15.0
"""A comment is sent after this time without an event, so that proxies keep the connection and dead ones are noticed."""
MOST_LISTENERS = 50


class Broadcast:
    """Pushes the state to all listeners. Used within one event loop."""

    def __init__(self, state: Callable[[], Json], clock: Clock) -> None:
        self._state, self._clock = state, clock
        self._listeners: set[asyncio.Event] = set()
        self._task: asyncio.Task[None] | None = None
        self._latest, self._number = "", 0
        self._closed = False

    @property
    def listeners(self) -> int:
        """How many listen."""
        return len(self._listeners)

    @property
    def full(self) -> bool:
        """Whether no more may listen."""
        return len(self._listeners) >= MOST_LISTENERS

    async def listen(self, gone: Coroutine[Any, Any, None]) -> AsyncIterator[str]:
        """Events of one client, as text; ends when `gone` does, or the server."""
        news = asyncio.Event()
        if self._number and self._task is not None:
            news.set()
        self._listeners.add(news)
        leaving = asyncio.create_task(gone)
        leaving.add_done_callback(lambda _: news.set())
        if self._task is None:
            self._task = asyncio.create_task(self._push())
        seen = 0
        try:
            yield "retry: 2000\n\n"
            while not self._closed and not leaving.done():
                try:
                    await asyncio.wait_for(news.wait(), SIGN_SECONDS)
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                news.clear()
                if self._number != seen and not leaving.done():
                    seen = self._number
                    yield f"event: state\nid: {seen}\ndata: {self._latest}\n\n"
        finally:
            leaving.cancel()
            self._listeners.discard(news)
            if not self._listeners and self._task is not None:
                self._task.cancel()
                self._task = None

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        for news in self._listeners:
            news.set()

    async def _push(self) -> None:
        before: Json | None = None
        problem = ""
        while True:
            try:
                state = await asyncio.to_thread(self._state)
            except Exception as error:  # noqa: BLE001 - one state that cannot be read must not end the stream
                if repr(error) != problem:  # once, not every second
                    problem = repr(error)
                    _log.exception("the state of the sinks could not be read")
            else:
                problem = ""
                if state != before:
                    before = state
                    self._latest = json.dumps({"now_ms": self._clock.now_ms(), **state})
                    self._number += 1
                    for news in self._listeners:
                        news.set()
            await asyncio.sleep(EVERY_SECONDS)
