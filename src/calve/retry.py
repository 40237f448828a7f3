"""The one back-off, and the one loop of attempts that other writers may win.

A failing store or catalog needs time: callers wait for `Backoff.next()` seconds before they try again. A lost race does
not: `retry_on` calls again at once, and the next attempt starts from the newest state.
"""

import math
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=Exception)


class Backoff:
    """Delays in seconds: the first one, then twice the one before, at most the longest."""

    def __init__(self, first: float, longest: float = math.inf) -> None:
        self._first, self._longest = first, longest
        self._delay = first

    def next(self) -> float:
        """The delay before the next attempt."""
        delay, self._delay = self._delay, min(self._delay * 2, self._longest)
        return delay

    def reset(self) -> None:
        """Start over, after a success."""
        self._delay = self._first


def retry_on(
    errors: type[E] | tuple[type[E], ...],
    attempts: int,
    action: Callable[[], T],
    failed: Callable[[E], None] | None = None,
) -> T:
    """Call `action` until it raises none of `errors`, at most `attempts` times. Raises the error of the last attempt.

    `failed` is called with the error of every other attempt.
    """
    for _ in range(attempts - 1):
        try:
            return action()
        except errors as error:
            if failed is not None:
                failed(error)
    return action()
