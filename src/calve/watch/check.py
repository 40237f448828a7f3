"""What `calve status --check` reports to a monitor: which sinks need someone to look, and why.

Exit codes: 0 all sinks are healthy, 1 at least one is not (or there is none to check), 2 the call is wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from calve.model.health import Health, Status

HEALTHY, UNHEALTHY = 0, 1


@dataclass(frozen=True)
class Limits:
    """What a monitor accepts. None: any."""

    max_lag: timedelta | None = None
    max_commit_age: timedelta | None = None
    max_poll_age: timedelta | None = None
    running: bool = False
    """Whether a sink that is stopped or paused is a problem, too."""


@dataclass(frozen=True)
class Problem:
    """One reason why a sink is not healthy."""

    sink: str
    text: str
    hint: str = ""


def problems_of(statuses: Sequence[Status], limits: Limits, now_ms: int) -> list[Problem]:
    """Return what is wrong, by sink; empty if all are healthy."""
    found: list[Problem] = []
    for status in statuses:
        found += _state(status, limits)
        found += _ages(status, limits, now_ms)
    return found


def _state(status: Status, limits: Limits) -> list[Problem]:
    idle = limits.running and status.health in {Health.STOPPED, Health.PAUSED}
    if not (status.health.wrong or idle):
        return []
    cause = f": {status.cause}" if status.cause else ""
    return [Problem(status.sink, f"{status.health}{cause}", status.hint)]


def _ages(status: Status, limits: Limits, now_ms: int) -> list[Problem]:
    """A sealed sink is complete and a paused one is meant to wait: neither can be too old."""
    if status.health in {Health.SEALED, Health.PAUSED}:
        return []
    found = []
    lag, age, polled = status.lag_now_ms(now_ms), status.since_commit_ms(now_ms), status.since_poll_ms(now_ms)
    if limits.max_lag is not None and lag is not None and lag > _millis(limits.max_lag):
        found.append(Problem(status.sink, f"the table is {lag // 1000} s behind its source"))
    if limits.max_commit_age is not None and (age is None or age > _millis(limits.max_commit_age)):
        text = "it has never committed" if age is None else f"the last commit was {age // 1000} s ago"
        found.append(Problem(status.sink, text, "An idle sink commits at its HEARTBEAT."))
    if limits.max_poll_age is not None and (polled is None or polled > _millis(limits.max_poll_age)):
        text = "its source was never polled" if polled is None else f"its source was last polled {polled // 1000} s ago"
        found.append(Problem(status.sink, text, "" if status.health.active else "calve run reads what is new since."))
    return found


def _millis(limit: timedelta) -> int:
    return limit // timedelta(milliseconds=1)
