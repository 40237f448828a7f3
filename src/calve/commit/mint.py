"""Where batches begin and end. Pure: what is recorded and the time in, the next batch out.

Windows end at multiples of their length since 1970. A batch begins where the one before it ended and ends with the last
window that is over, so windows that were closed while nobody looked, or while the committer was behind, become one
batch (after a restart: the catch-up batch), and windows without changes become part of the next one. Batches tile time:
none overlaps another, and nothing lies between two of them.
"""

from collections.abc import Sequence

from calve.model.frontier import BatchDescription, Frontier


def mint(minted: Frontier, staged: Sequence[int], now_ms: int, *, window_ms: int | None) -> BatchDescription | None:
    """The batch to be closed at `now_ms`, if one is due.

    `minted` is the upper end of the last batch, `staged` are the times of checkpoints above it, in order. Without a
    window everything that is staged is closed at once.
    """
    if not staged or minted.sealed:
        return None
    if window_ms is None:
        return BatchDescription(minted, Frontier(staged[-1] + 1))
    now_ms = max(now_ms, staged[-1])  # this clock may be behind the one that gave the times
    first_end = window_end(staged[0], window_ms)
    over = max(first_end, now_ms // window_ms * window_ms)
    return BatchDescription(minted, Frontier(over)) if now_ms >= first_end else None


def window_end(time: int, window_ms: int) -> int:
    """The end of the window that a time lies in."""
    return (time // window_ms + 1) * window_ms


def wait_ms(staged: Sequence[int], now_ms: int, *, window_ms: int) -> int | None:
    """How long until the first staged checkpoint's window is over; None with nothing staged."""
    return max(0, window_end(staged[0], window_ms) - now_ms) if staged else None
