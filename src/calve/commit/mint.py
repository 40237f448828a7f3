"""Where batches begin and end. Pure: what is recorded and how far time is complete in, the next batch out.

Windows end at multiples of their length since 1970. A batch begins where the one before it ended and ends with the last
window that is over, so windows that were closed while nobody looked, or while the committer was behind, become one
batch (after a restart: the catch-up batch), and windows without changes become part of the next one. Batches tile time:
none overlaps another, and nothing lies between two of them.
"""

from collections.abc import Sequence

from calve.model.frontier import BatchDescription, Frontier


def mint(
    minted: Frontier,
    times: Sequence[int],
    reach: int,
    *,
    window_ms: int | None,
    coalesce: bool = True,
    short: bool = False,
) -> BatchDescription | None:
    """The batch to be closed now, if one is due.

    `minted` is the upper end of the last batch, `times` are those of staged rows from there on, in order. All times
    below `reach` are complete. Without a window everything below it is closed; with `short` the last window, too, is
    closed there instead of at its end. Without `coalesce` a batch holds one window, or one time.
    """
    if not times or minted.sealed or times[0] >= reach:
        return None
    first_end = times[0] + 1 if window_ms is None else window_end(times[0], window_ms)
    over = reach if window_ms is None or short else reach // window_ms * window_ms
    if first_end > over and not short:
        return None
    return BatchDescription(minted, Frontier(over if coalesce else min(first_end, over)))


def window_end(time: int, window_ms: int) -> int:
    """The end of the window that a time lies in."""
    return (time // window_ms + 1) * window_ms


def wait_ms(times: Sequence[int], now_ms: int, *, window_ms: int) -> int | None:
    """How long until the window of the first time is over; None without times."""
    return max(0, window_end(times[0], window_ms) - now_ms) if times else None
