"""The details of a sink, for a client that shows them: all of them once, and then what changed.

    made of the same values ──► not computed          equal to what it was ──► not sent

A sink that commits twice a second changes its details every second, but little of them: a commit or two is new, the
definition, the table and the older commits are as they were. Every part and every commit has the number of the change
that it is from; a client gives the number that it knows, in a cursor, and gets what has a higher one.
"""

import threading
from typing import Any

from calve.model.health import CommitReport
from calve.web.shapes import PARTS, Json, Known, commits_by_table, shape_commit, summarize_sink

MOST_DROPPED = 1_000
"""Commits that are remembered as no longer shown; with more, clients start over."""


class SinkDetails:
    """The details of one sink, with what changed when. Any thread may use it."""

    def __init__(self, new_id: str) -> None:
        self._id, self._lock = new_id, threading.Lock()
        self._number = 0
        """Of the last change."""
        self._oldest = 0
        """A client that knows only older changes starts over."""
        self._made_of: dict[str, tuple[object, ...]] = {}
        self._parts: dict[str, tuple[int, Any]] = {}
        self._commits: dict[str, tuple[int, Json]] = {}
        self._dropped: dict[str, int] = {}
        self._table: object = None
        self._by_table: dict[str, Json] = {}
        self._reports: tuple[CommitReport, ...] = ()

    def since(self, cursor: str | None, known: Known) -> Json:
        """What changed since a cursor of an earlier answer; everything without one, or with one of another server."""
        with self._lock:
            self._refresh(known)
            number = self._number_of(cursor)
            body = {name: value for name, value in summarize_sink(known).items() if name not in PARTS}
            body |= {name: part for name, (changed, part) in self._parts.items() if changed > number}
            found = [commit for changed, commit in self._commits.values() if changed > number]
            body["commit_log"] = sorted(found, key=lambda commit: (commit["at_ms"], commit["snapshot"]))
            body["cursor"] = f"{self._id}.{self._number}"
            if number:
                body["since"] = cursor
                body["dropped"] = [snapshot for snapshot, changed in self._dropped.items() if changed > number]
            return body

    def _number_of(self, cursor: str | None) -> int:
        name, _, number = (cursor or "").rpartition(".")
        if name != self._id or not (number.isascii() and number.isdecimal()):
            return 0
        return int(number) if self._oldest <= int(number) <= self._number else 0

    def _refresh(self, known: Known) -> None:
        number = self._number + 1
        for name, part in PARTS.items():
            made_of = part.made_of(known)
            if name in self._parts and _same(made_of, self._made_of[name]):
                continue
            self._made_of[name] = made_of
            shape = part.shape(known)
            if name not in self._parts or self._parts[name][1] != shape:
                self._parts[name], self._number = (number, shape), number
        if known.table is not self._table or known.commits is not self._reports:
            self._merge(known, number)

    def _merge(self, known: Known, number: int) -> None:
        """Bring together the commits by the log and by the table: either may have some that the other lacks."""
        before = {report.snapshot_id for report in self._reports}
        if known.table is not self._table:
            self._table, self._by_table = known.table, commits_by_table(known)
            before = set()
        self._reports = known.commits
        reported = {str(report.snapshot_id): report for report in known.commits}
        for name in self._commits.keys() - self._by_table.keys() - reported.keys():
            del self._commits[name]
            self._dropped[name] = self._number = number
        gone = {str(snapshot) for snapshot in before} - reported.keys()
        bodies = {name: body for name, body in self._by_table.items() if not before or name in gone}
        for name, report in reported.items():
            if report.snapshot_id not in before:
                bodies[name] = shape_commit(report, self._by_table.get(name))
        for name, body in bodies.items():
            if name not in self._commits or self._commits[name][1] != body:
                self._commits[name], self._number = (number, body), number
                self._dropped.pop(name, None)
        if len(self._dropped) > MOST_DROPPED:
            self._dropped.clear()
            self._oldest = self._number


def _same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
