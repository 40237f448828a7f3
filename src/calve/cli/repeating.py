"""What happens at intervals beside a command."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeating(action: Callable[[], None], seconds: float, name: str) -> Iterator[None]:
    """Call `action` at this interval, in a thread of this name, until the end of the block. It must not raise."""
    ended = threading.Event()

    def main() -> None:
        while not ended.wait(seconds):
            action()

    thread = threading.Thread(target=main, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
