"""Logical time. A frontier states that no change with a smaller time will arrive.

It is an antichain of zero or one element: `[t]`, or `[]` when the input is complete (sealed). Times are milliseconds.
"""

import json
from dataclasses import dataclass
from functools import total_ordering
from typing import Self


@total_ordering
@dataclass(frozen=True)
class Frontier:
    """`time` is the smallest time that may still arrive; None when sealed."""

    time: int | None

    @property
    def sealed(self) -> bool:
        """True when nothing will arrive any more."""
        return self.time is None

    def __lt__(self, other: Self) -> bool:
        if self.time is None:
            return False
        return other.time is None or self.time < other.time

    def to_json(self) -> str:
        """The form in snapshot summaries: `[123]` or `[]`."""
        return json.dumps([] if self.time is None else [self.time])

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of `to_json`."""
        elements = json.loads(text)
        if not isinstance(elements, list) or len(elements) > 1 or not all(isinstance(t, int) for t in elements):
            raise ValueError(f"not a frontier: {text}")
        return cls(elements[0] if elements else None)

    def __str__(self) -> str:
        return self.to_json()


START = Frontier(0)
SEALED = Frontier(None)


@dataclass(frozen=True)
class BatchDescription:
    """All changes with a time in [lower, upper); they become one snapshot."""

    lower: Frontier
    upper: Frontier

    def __post_init__(self) -> None:
        if not self.lower < self.upper:
            raise ValueError(f"empty batch [{self.lower}, {self.upper})")

    def holds(self, time: int) -> bool:
        """Whether changes with this time belong to the batch."""
        return not Frontier(time) < self.lower and Frontier(time) < self.upper

    def __str__(self) -> str:
        return f"[{self.lower}, {self.upper})"
