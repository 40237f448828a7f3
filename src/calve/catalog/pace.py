"""How soon a server wants to be asked again: the header `Retry-After` of an answer 429 or 503, within bounds.

Attempts are made by others, each after a pause of its own; a client that was told to wait sends nothing before.
"""

import threading
from email.utils import parsedate_to_datetime

from requests import Response

from calve.clock import Clock

LONGEST_SECONDS = 30.0
"""A server that is away for longer is asked once in so many seconds."""
_BUSY = frozenset({429, 503})


class Pace:
    """When the next request may be sent; one for a client."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._not_before = 0.0
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Until the server wants to be asked."""
        with self._lock:
            left = self._not_before - self._clock.monotonic()
        if left > 0:
            threading.Event().wait(left)

    def heed(self, response: Response) -> None:
        """Remember what an answer asks for."""
        told = response.headers.get("Retry-After")
        if response.status_code in _BUSY and told is not None:
            with self._lock:
                self._not_before = self._clock.monotonic() + seconds_of(told, self._clock)


def seconds_of(told: str, clock: Clock) -> float:
    """What the header says, a number or a date; nothing where it says nothing."""
    try:
        seconds = float(told)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(told).timestamp() - clock.now_ms() / 1000
        except ValueError:
            return 0.0
    return min(max(seconds, 0.0), LONGEST_SECONDS)
