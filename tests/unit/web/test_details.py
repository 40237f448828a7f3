"""What a client is sent of a sink that it already shows."""

from dataclasses import replace
from typing import Any

import pytest

from calve.iceberg.planning.table_details import SnapshotNote, TableDetails
from calve.model.health import CommitReport, Health, Status
from calve.web import details
from calve.web.details import SinkDetails
from calve.web.shapes import PARTS, Json, Known
from calve.web.tables import LoadedTable
from tests.support.homes import status_of

STATUS = status_of("orders", Health.RUNNING, started_ms=0)


def reports(*snapshots: int) -> tuple[CommitReport, ...]:
    return tuple(CommitReport(n, f"[{n}]", n, n, 0, 1, 100, 0.5, at_ms=1000 + n) for n in snapshots)


def table(*snapshots: int) -> LoadedTable:
    notes = tuple(
        SnapshotNote(
            n,
            1000 + n,
            "append",
            "s",
            1,
            claim=False,
            frontier=f"[{n}]",
            added_rows=n,
            added_deletes=0,
            added_files=1,
            removed_files=0,
            added_bytes=100,
        )
        for n in snapshots
    )
    found = TableDetails("here", 2, snapshots[-1], 1000, 9, 1, 0, 100, 1, 1000, 2, notes, ())
    return LoadedTable(found, loaded_ms=snapshots[-1])


def known(status: Status, loaded: LoadedTable, commits: tuple[CommitReport, ...]) -> Known:
    return Known("orders", status, None, loaded, commits)


def merged(shown: Json, news: Json) -> Json:
    """As page.js does it."""
    commits = {commit["snapshot"]: commit for commit in shown["commit_log"]}
    for snapshot in news["dropped"]:
        commits.pop(snapshot, None)
    commits |= {commit["snapshot"]: commit for commit in news["commit_log"]}
    order = sorted(commits.values(), key=lambda commit: (commit["at_ms"], commit["snapshot"]))
    return {**shown, **news, "commit_log": order}


def test_a_client_that_gets_changes_alone_shows_what_one_shows_that_gets_everything() -> None:
    """Commits by the log and the table, one that leaves both, another state, and a table that is loaded later."""
    loaded = table(1, 2, 3)
    stalled = STATUS.entered(Health.STALLED, 5, "why")
    steps = [
        known(STATUS, LoadedTable(), reports(1, 2)),
        known(STATUS, LoadedTable(), reports(1, 2)),
        known(STATUS, LoadedTable(), reports(1, 2, 3)),
        known(STATUS, loaded, reports(1, 2, 3)),
        known(stalled, loaded, reports(2, 3, 4)),
        known(stalled, table(3, 4, 5), reports(3, 4)),
        known(replace(stalled, maintaining="compact"), table(5, 6), ()),
    ]
    followed, shown = SinkDetails("a"), dict[str, Any]()
    for step in steps:
        news = followed.since(shown.get("cursor"), step)
        shown = merged(shown, news) if shown else news
        full = SinkDetails("b").since(None, step)
        for name in (*PARTS, "commit_log", "health", "revision"):
            assert shown[name] == full[name], name


def test_only_what_changed_is_sent() -> None:
    followed, loaded = SinkDetails("a"), table(1, 2)
    first = followed.since(None, known(STATUS, loaded, reports(1, 2)))
    assert "since" not in first
    second = followed.since(first["cursor"], known(STATUS, loaded, reports(1, 2, 3)))
    assert second["since"] == first["cursor"]
    assert [commit["snapshot"] for commit in second["commit_log"]] == ["3"]
    assert not PARTS.keys() & second.keys()
    third = followed.since(second["cursor"], known(replace(STATUS, maintaining="compact"), loaded, reports(1, 2, 3)))
    assert PARTS.keys() & third.keys() == {"upkeep"}
    assert third["commit_log"] == third["dropped"] == []


@pytest.mark.parametrize("cursor", ["", "b.1", "a.0", "a.99", "a.x", "a.²", "1", "a.-1"])
def test_with_a_cursor_of_elsewhere_everything_is_sent(cursor: str) -> None:
    followed = SinkDetails("a")
    step = known(STATUS, table(1, 2), reports(1, 2))
    followed.since(None, step)
    found = followed.since(cursor, step)
    assert "since" not in found
    assert PARTS.keys() <= found.keys()
    assert len(found["commit_log"]) == 2


def test_who_was_away_for_too_many_commits_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(details, "MOST_DROPPED", 3)
    followed = SinkDetails("a")
    first = followed.since(None, known(STATUS, LoadedTable(), reports(1, 2)))["cursor"]
    cursors = [followed.since(None, known(STATUS, LoadedTable(), reports(n)))["cursor"] for n in range(3, 9)]
    assert "since" not in followed.since(first, known(STATUS, LoadedTable(), reports(8)))
    assert "since" in followed.since(cursors[-1], known(STATUS, LoadedTable(), reports(8)))
