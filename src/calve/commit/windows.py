"""Decides when a batch is closed and where it ends: by the clock, by complete event times, by size, or by a flush.

`Closing` reads a run's position and never changes it; the run calls it with its memory lock held. `mint` is pure.

Windows end at multiples of their length since 1970. A batch starts where the previous one ended and ends with the last
window that is over. So windows that ended while the sink was stopped or the committer was behind become one batch
(after a restart: the catch-up batch), and windows without changes become part of the next one. Batches tile time: no
overlaps, no gaps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from calve.clock import Clock
from calve.commit.takeover import RunPosition
from calve.model.frontier import SEALED, BatchDescription, Frontier
from calve.model.spec import SinkSpec


def mint(
    minted: Frontier,
    times: Sequence[int],
    reach: int,
    *,
    window_ms: int | None,
    coalesce: bool = True,
    short: bool = False,
) -> BatchDescription | None:
    """Return the batch that is due now, if there is one.

    `minted` is the upper end of the last batch; `times` are the sorted times of the rows staged since. All times below
    `reach` are complete. Without a window the batch ends at `reach`; with `short` even the last window is cut off
    there. Without `coalesce` a batch contains one window, or one time.
    """
    if not times or minted.sealed or times[0] >= reach:
        return None
    first_end = times[0] + 1 if window_ms is None else window_end(times[0], window_ms)
    over = reach if window_ms is None or short else reach // window_ms * window_ms
    if first_end > over and not short:
        return None
    return BatchDescription(minted, Frontier(over if coalesce else min(first_end, over)))


def window_end(time: int, window_ms: int) -> int:
    """Return the end of the window that contains a time."""
    return (time // window_ms + 1) * window_ms


def wait_ms(times: Sequence[int], now_ms: int, *, window_ms: int) -> int | None:
    """Return how long until the window of the first time is over; None without times."""
    return max(0, window_end(times[0], window_ms) - now_ms) if times else None


_LEAST_WAIT_MS = 1000

LONGEST_SILENCE: Final = 10.0
"""Seconds between two polls of a source, in addition to the sink's pace, that still count as continuous polling."""


@dataclass(frozen=True)
class Quiet:
    """A period in which the source was polled continuously and had nothing. Times are monotonic except `asked_ms`."""

    first: float
    last: float
    asked_ms: int
    """Wall-clock time of the last poll: later data was not looked for."""

    @property
    def milliseconds(self) -> float:
        """Length of the period."""
        return (self.last - self.first) * 1000


class Closing:
    """Closing rules of one sink, and what its run knows of the source beyond the records."""

    def __init__(self, spec: SinkSpec, clock: Clock) -> None:
        self._spec, self._clock = spec, clock
        self._flushing = self._sealing = False
        self._quiet: Quiet | None = None

    def reset_idle(self) -> None:
        """Restart the idle timeout: the source has data, or could not be polled."""
        self._quiet = None

    def found_nothing(self, asked_ms: int) -> None:
        """Note that the source was polled at that time and had nothing."""
        now, quiet = self._clock.monotonic(), self._quiet
        unbroken = quiet is not None and now - quiet.last <= LONGEST_SILENCE + 2 * self._spec.pace.every
        self._quiet = Quiet(quiet.first if quiet and unbroken else now, now, asked_ms)

    def flush(self, *, seal: bool) -> bool:
        """Close everything that is staged now; with `seal` no further input is expected. False if that is known."""
        known = self._flushing and (self._sealing or not seal)
        self._flushing = True
        self._sealing = self._sealing or seal
        return not known

    def end_flush(self, position: RunPosition) -> None:
        """Return to closing by windows once nothing is staged any more."""
        self._flushing = self._flushing and bool(position.staged)

    def input(self, position: RunPosition) -> int:
        """Return the input frontier, from the records or, if the source is idle, from the time of the last poll."""
        times, quiet = self._spec.times, self._quiet
        if times is None:
            return position.last_time + 1
        if times.idle_ms is None or quiet is None or quiet.milliseconds < times.idle_ms:
            return position.input
        return max(position.input, quiet.asked_ms - times.delay_ms)

    def next_batch(self, position: RunPosition) -> BatchDescription | None:
        """Return the batch that is due now, if there is one."""
        times = position.waiting_times
        if not times:
            return None
        split, full = position.split(own_times=self._spec.times is not None), self._full(position)
        whole = self._flushing or position.final or split is not None
        reach = split or (times[-1] + 1 if whole else self._reach(position, times, full=full))
        window_ms, coalesce = self._spec.window_ms, self._spec.coalesce
        batch = mint(position.minted, times, reach, window_ms=window_ms, coalesce=coalesce, short=whole or full)
        ends = batch is not None and Frontier(times[-1]) < batch.upper and (self._sealing or position.final)
        return BatchDescription(batch.lower, SEALED) if batch and ends else batch

    def _full(self, position: RunPosition) -> bool:
        limits = [size for size in (self._spec.commit_bytes, self._spec.staged_limit) if size is not None]
        return bool(limits) and position.staged_bytes >= min(limits)

    def _reach(self, position: RunPosition, times: Sequence[int], *, full: bool) -> int:
        if self._spec.times is not None:
            return self.input(position)
        if full or self._spec.window_ms is None:
            return times[-1] + 1
        return max(self._clock.now_ms(), times[-1])  # this clock may be behind the one that gave the times

    def until_due(self, position: RunPosition) -> float | None:
        """Return the seconds until a batch may become due; None if waiting alone does not make it due."""
        times, own, now = position.waiting_times, self._spec.times, self._clock.now_ms()
        if not times:
            return None
        if self.next_batch(position):
            return 0.0
        if own is None:
            return (wait_ms(times, now, window_ms=self._spec.window_ms or 1) or 0) / 1000
        if own.idle_ms is None:
            return None
        return max(own.idle_ms - (self._quiet.milliseconds if self._quiet else 0), _LEAST_WAIT_MS) / 1000
