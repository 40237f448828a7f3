"""Tells others in this process about commits, after they happened."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from calve.model.health import CommitReport, Status

Listener = Callable[[Status, CommitReport], None]

_lock = threading.Lock()
_listeners: list[Listener] = []


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call `listener` after every commit of this process's sinks. It must neither wait nor raise."""
    with _lock:
        _listeners.append(listener)
    try:
        yield
    finally:
        with _lock:
            _listeners.remove(listener)


def announce(status: Status, report: CommitReport) -> None:
    """Tell all listeners."""
    with _lock:
        listeners = list(_listeners)
    for listener in listeners:
        listener(status, report)
