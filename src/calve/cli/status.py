"""`calve status`: what sinks report about themselves, for people, programs and monitors."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from calve.cli.show import console, show_statuses
from calve.clock import SystemClock
from calve.errors import InvalidInput
from calve.model.health import Status
from calve.sql.values import parse_duration
from calve.watch.check import HEALTHY, UNHEALTHY, Limits, problems_of
from calve.watch.status_files import read_statuses


def limits_of(max_lag: str | None, max_commit_age: str | None, max_poll_age: str | None, *, running: bool) -> Limits:
    """The limits of a check. Raises InvalidInput."""
    lag, commit_age, poll_age = (
        None if text is None else parse_duration(text) for text in (max_lag, max_commit_age, max_poll_age)
    )
    return Limits(lag, commit_age, poll_age, running)


def run_status(home: Path, sink: str | None, *, as_json: bool, check: Limits | None) -> int:
    """Print statuses, or with `check` only what is wrong; returns the exit code."""
    now_ms = SystemClock().now_ms()
    statuses = read_statuses(home, now_ms)
    if sink is not None:
        statuses = [status for status in statuses if status.sink == sink]
        if not statuses:
            raise InvalidInput(
                f'there is no sink "{sink}"', detail=f"Looked in {home}.", hint="Give --home, or no name to see all."
            )
    if check is not None:
        return _check(home, statuses, check, now_ms, as_json=as_json)
    if as_json:
        _print_json([to_json(status, now_ms) for status in statuses])
    else:
        show_statuses(console(), statuses, home, now_ms)
    return HEALTHY


def to_json(status: Status, now_ms: int) -> dict[str, Any]:
    """A status as JSON, with the ages that depend on the time."""
    return asdict(status) | {
        "lag_now_ms": status.lag_now_ms(now_ms),
        "since_commit_ms": status.since_commit_ms(now_ms),
        "since_poll_ms": status.since_poll_ms(now_ms),
        "heartbeat_age_ms": status.heartbeat_age_ms(now_ms),
        "retention_left_ms": status.retention_left_ms(now_ms),
    }


def _check(home: Path, statuses: list[Status], limits: Limits, now_ms: int, *, as_json: bool) -> int:
    problems = problems_of(statuses, limits, now_ms)
    code = UNHEALTHY if problems or not statuses else HEALTHY
    if as_json:
        sinks = {status.sink: status.health.value for status in statuses}
        _print_json({"healthy": code == HEALTHY, "sinks": sinks, "problems": [asdict(p) for p in problems]})
        return code
    screen = console()
    if not statuses:
        screen.print(f"No sink has run in {home} yet.", soft_wrap=True)
    elif not problems:
        word = "sink is" if len(statuses) == 1 else "sinks are"
        screen.print(f"{len(statuses)} {word} healthy")
    for problem in problems:
        screen.print(f"{problem.sink}: {problem.text}", soft_wrap=True)
        if problem.hint:
            screen.print(f"  hint: {problem.hint}", soft_wrap=True)
    return code


def _print_json(body: object) -> None:
    sys.stdout.write(json.dumps(body, indent=2) + "\n")
