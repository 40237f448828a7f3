"""The same work in several threads at once."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_threads(work: Callable[[T], R], arguments: Sequence[T]) -> list[R]:
    """What each argument gives, each in a thread beside the others; raises the first failure when all have ended."""
    with ThreadPoolExecutor(len(arguments)) as pool:
        return list(pool.map(work, arguments))
