"""Time, ids and randomness: the only module that reads them.

Everything else receives a `Clock` and an `IdSource` as arguments, so that tests and simulations control both.
"""

import random
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

Timer = Callable[[str], AbstractContextManager[None]]
"""Measures the time of a block as a phase of the work that the thread does."""


def untimed(_phase: str) -> AbstractContextManager[None]:
    """A timer that measures nothing."""
    return nullcontext()


class Clock(Protocol):
    """Wall-clock and monotonic time."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds that never decrease; for durations only."""
        ...


class IdSource(Protocol):
    """Fresh identifiers."""

    def new_id(self) -> str:
        """A unique text for run ids, commit ids and file names."""
        ...

    def jitter(self) -> float:
        """A random factor in [0.5, 1.0) that spreads retries."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class RandomIds:
    """Random version-4 UUIDs."""

    def new_id(self) -> str:
        return str(uuid.uuid4())

    def jitter(self) -> float:
        return 0.5 + random.random() / 2  # noqa: S311 - spreads retries, not cryptographic


_SINK_NAMESPACE = uuid.UUID("6f1c1f0e-2a0f-5d7c-9f0b-63616c766531")


def sink_id_of(name: str, table: str) -> str:
    """The UUID of a sink, the same in every process that uses the same sink name and table."""
    return str(uuid.uuid5(_SINK_NAMESPACE, f"{name}\0{table}"))
