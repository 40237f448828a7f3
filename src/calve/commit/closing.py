"""When the batch that is open is closed: by the clock, by times that are complete, by size, or because all is there.

Looks at a run's position and changes nothing of it. The run calls it with its memory locked.
"""

from calve.clock import Clock
from calve.commit.adoption import Position
from calve.commit.mint import mint, wait_ms
from calve.model.frontier import SEALED, BatchDescription, Frontier
from calve.model.spec import SinkSpec

_LEAST_WAIT_MS = 1000


class Closing:
    """The rules of one sink, and what a run knows of its source beside the records."""

    def __init__(self, spec: SinkSpec, clock: Clock) -> None:
        self._spec, self._clock = spec, clock
        self._flushing = self._sealing = False
        self._heard_ms = clock.now_ms()

    def heard(self) -> None:
        """A checkpoint came: the source is not idle."""
        self._heard_ms = self._clock.now_ms()

    def flush(self, *, seal: bool) -> None:
        """Everything that is there now is to be closed; with `seal` nothing follows."""
        self._flushing = True
        self._sealing = self._sealing or seal

    def flushed(self, position: Position) -> None:
        """Windows count again once nothing is left of what was to be flushed."""
        self._flushing = self._flushing and bool(position.staged)

    def input(self, position: Position) -> int:
        """No time below it is expected: told by what was recorded, or by the clock where the source is idle."""
        times, now = self._spec.times, self._clock.now_ms()
        if times is None:
            return position.last_time + 1
        idle = times.idle_ms is not None and now - self._heard_ms >= times.idle_ms
        return max(position.input, now - times.delay_ms) if idle else position.input

    def next_batch(self, position: Position) -> BatchDescription | None:
        """The batch that is to be closed now, if one is."""
        times = position.waiting_times
        if not times:
            return None
        whole = self._flushing or position.final
        window_ms = None if self._full(position) else self._spec.window_ms
        reach = times[-1] + 1 if whole else self._reach(position, times, window_ms)
        coalesce = self._spec.coalesce
        batch = mint(position.minted, times, reach, window_ms=window_ms, coalesce=coalesce, short=whole)
        ends = batch is not None and Frontier(times[-1]) < batch.upper and (self._sealing or position.final)
        return BatchDescription(batch.lower, SEALED) if batch and ends else batch

    def _full(self, position: Position) -> bool:
        return self._spec.commit_bytes is not None and position.staged_bytes >= self._spec.commit_bytes

    def _reach(self, position: Position, times: list[int], window_ms: int | None) -> int:
        if self._spec.times is not None:
            return self.input(position)
        if window_ms is None:
            return times[-1] + 1
        return max(self._clock.now_ms(), times[-1])  # this clock may be behind the one that gave the times

    def until_due(self, position: Position) -> float | None:
        """Seconds until a batch may be due; None when that is not a matter of time."""
        times, own, now = position.waiting_times, self._spec.times, self._clock.now_ms()
        if not times:
            return None
        if self.next_batch(position):
            return 0.0
        if own is None:
            return (wait_ms(times, now, window_ms=self._spec.window_ms or 1) or 0) / 1000
        return None if own.idle_ms is None else max(self._heard_ms + own.idle_ms - now, _LEAST_WAIT_MS) / 1000
