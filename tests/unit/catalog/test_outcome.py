"""What a commit came to, by what the catalog answers and what the table shows then."""

import errno
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyiceberg.exceptions as pyiceberg
import pytest
from pydantic import ValidationError
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.snapshots import Operation
from sqlalchemy.exc import OperationalError

from calve.catalog.outcome import TableChange, send
from calve.errors import CommitConflict, CommitUnknown, TransientError
from calve.iceberg.files.manifest_cache import ManifestCache
from calve.iceberg.snapshot import draft as drafts
from calve.iceberg.snapshot.draft import SnapshotContents, new_draft, snapshot_change
from calve.iceberg.snapshot.history import new_summary
from calve.maintain.manifests import rewrite_manifests
from calve.model.files import Manifest
from tests.unit.iceberg.sample import NAME, Sample


def sqlite_error(code: int) -> OperationalError:
    cause = sqlite3.OperationalError("what SQLite says")
    cause.sqlite_errorcode = code
    return OperationalError("UPDATE", {}, cause)


def unparsable() -> ValidationError:
    with pytest.raises(ValidationError) as raised:
        CommitTableResponse.model_validate_json("<html>502 behind a 200</html>")
    return raised.value


CONFLICTS = [pyiceberg.CommitFailedException("branch main has changed"), pyiceberg.NoSuchTableError("gone")]
LOST: list[Exception] = [
    pyiceberg.CommitStateUnknownException("502"),
    pyiceberg.ServerError("500"),
    pyiceberg.ServiceUnavailableError("503"),
    pyiceberg.RESTError("what"),
    NotImplementedError("501"),
    ConnectionResetError("peer"),
    TimeoutError("read timed out"),
    OSError("no number"),
    sqlite_error(sqlite3.SQLITE_BUSY),
    sqlite_error(sqlite3.SQLITE_IOERR),
    ValueError("Did not receive a response"),
    unparsable(),
]
REFUSED: list[Exception] = [
    pyiceberg.ForbiddenError("403"),
    pyiceberg.UnauthorizedError("401"),
    pyiceberg.BadRequestError("400"),
    pyiceberg.TooManyRequestsError("429"),
    pyiceberg.AuthorizationExpiredError("419"),
    PermissionError(errno.EACCES, "denied"),
    OSError(errno.ENOSPC, "full"),
]


@pytest.fixture
def sample(tmp_path: Path) -> Iterator[Sample]:
    made = Sample(tmp_path)
    made.commit({1: "a"})
    yield made
    made.close()


class Attempt:
    """A snapshot on top of the table as it is now, with a manifest list and another file of its own."""

    def __init__(self, sample: Sample) -> None:
        table = sample.table
        self.draft = new_draft(table, sample.clock, sample.ids)
        parent = self.draft.parent
        assert parent is not None
        manifests = ManifestCache()
        lines = manifests.lines_of(table.io, parent)
        other = f"{table.location()}/data/own.parquet"
        Path(other.removeprefix("file://")).touch()
        summary = new_summary(Operation.REPLACE, {}, parent, {})
        self.change = snapshot_change(self.draft, SnapshotContents(lines, lines, summary, (other,)), manifests)

    @property
    def left(self) -> int:
        """How many of its files exist."""
        return sum(Path(file.removeprefix("file://")).exists() for file in self.change.files)


def answering(sample: Sample, monkeypatch: pytest.MonkeyPatch, error: Exception, *, applied: bool) -> None:
    real = sample.catalog.commit_table

    def commit_table(*arguments: object) -> None:
        if applied:
            real(*arguments)  # type: ignore[arg-type]
        raise error

    monkeypatch.setattr(sample.catalog, "commit_table", commit_table)


def named(error: Exception) -> str:
    return f"{type(error).__name__} {error}"[:40]


@pytest.mark.parametrize("error", [*CONFLICTS, *LOST, *REFUSED], ids=named)
def test_a_commit_that_is_in_the_table_was_applied_whatever_its_answer_was(
    sample: Sample, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    attempt = Attempt(sample)
    answering(sample, monkeypatch, error, applied=True)
    after = send(attempt.change, "the commit")
    assert after.snapshot_by_id(attempt.draft.snapshot_id) is not None
    assert attempt.left == 2
    assert sample.rows() == {1: "a"}


@pytest.mark.parametrize("error", LOST, ids=named)
def test_a_commit_that_was_not_answered_is_unknown_even_if_the_table_moved_on(
    sample: Sample, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    attempt = Attempt(sample)
    sample.commit({2: "b"})
    answering(sample, monkeypatch, error, applied=False)
    with pytest.raises(CommitUnknown, match="the response to the commit was lost") as raised:
        send(attempt.change, "the commit")
    assert raised.value.__cause__ is error
    assert attempt.left == 2


@pytest.mark.parametrize("error", REFUSED, ids=named)
def test_a_catalog_that_lets_nobody_in_says_so_and_nothing_is_removed(
    sample: Sample, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    attempt = Attempt(sample)
    sample.commit({2: "b"})
    answering(sample, monkeypatch, error, applied=False)
    with pytest.raises(TransientError, match="the commit failed") as raised:
        send(attempt.change, "the commit")
    assert type(raised.value) is TransientError
    assert attempt.left == 2


@pytest.mark.parametrize("error", CONFLICTS, ids=named)
def test_a_refused_commit_was_not_applied_if_the_table_shows_why(
    sample: Sample, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    caplog.set_level("INFO")
    attempt = Attempt(sample)
    sample.commit({2: "b"})
    answering(sample, monkeypatch, error, applied=False)
    with pytest.raises(CommitConflict, match="the commit conflicted with another change of the table") as raised:
        send(attempt.change, "the commit")
    assert str(error) in raised.value.detail
    assert attempt.left == 0
    assert "removed 2 files: the commit conflicted with another change of the table and was not applied" in caplog.text
    assert sample.rows() == {1: "a", 2: "b"}


def recreate(sample: Sample) -> None:
    sample.catalog.rename_table(NAME.identifier, (*NAME.identifier[:-1], "moved"))
    again = Sample(sample.home)
    again.commit({7: "x"})
    again.commit({8: "y"})
    again.close()


def rename_column(sample: Sample) -> None:
    with sample.table.update_schema() as change:
        change.rename_column("v", "w")


def nothing(_: Sample) -> None:
    """Nothing happens."""


@pytest.mark.parametrize("meanwhile", [nothing, rename_column, recreate], ids=lambda it: it.__name__)
def test_a_refused_commit_is_unknown_while_it_may_be_elsewhere_or_come_later(
    sample: Sample, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[Sample], None]
) -> None:
    """A change of the schema alone does not make the sequence number of the snapshot old: it may still arrive."""
    attempt = Attempt(sample)
    meanwhile(sample)
    answering(sample, monkeypatch, pyiceberg.CommitFailedException("refused"), applied=False)
    with pytest.raises(CommitUnknown, match="the commit was rejected, and the table does not show why"):
        send(attempt.change, "the commit")
    assert attempt.left == 2


@pytest.mark.parametrize("hidden", ["history", "references alone"])
def test_a_refused_commit_is_unknown_where_the_catalog_does_not_show_all_snapshots(
    sample: Sample, monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    attempt = Attempt(sample)
    sample.commit({2: "b"})
    answering(sample, monkeypatch, pyiceberg.CommitFailedException("refused"), applied=False)
    if hidden == "history":
        real = sample.catalog.load_table

        def load_table(name: tuple[str, ...]) -> Table:
            table = real(name)
            table.metadata = table.metadata.model_copy(update={"snapshots": table.metadata.snapshots[-1:]})
            return table

        monkeypatch.setattr(sample.catalog, "load_table", load_table)
    else:
        monkeypatch.setitem(sample.catalog.properties, "snapshot-loading-mode", "refs")
    with pytest.raises(CommitUnknown):
        send(attempt.change, "the commit")
    assert attempt.left == 2


def test_a_commit_whose_table_cannot_be_loaded_is_unknown(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt(sample)
    sample.commit({2: "b"})
    answering(sample, monkeypatch, pyiceberg.CommitFailedException("refused"), applied=False)

    def load_table(_: object) -> None:
        raise ConnectionResetError("gone")

    monkeypatch.setattr(sample.catalog, "load_table", load_table)
    with pytest.raises(CommitUnknown):
        send(attempt.change, "the commit")
    assert attempt.left == 2


def test_what_is_found_before_anything_is_sent_is_certain(sample: Sample) -> None:
    attempt = Attempt(sample)
    rename_column(sample)
    with pytest.raises(CommitConflict):
        send(attempt.change, "the commit")
    assert attempt.left == 0


def test_a_commit_to_a_table_that_was_dropped_was_not_applied(sample: Sample) -> None:
    attempt = Attempt(sample)
    sample.catalog.drop_table(NAME.identifier)
    with pytest.raises(CommitConflict):
        send(attempt.change, "the commit")


def test_an_answer_without_the_snapshot_is_no_proof(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a redirect: the client asks for the table then, and takes it for the answer to its commit."""
    attempt = Attempt(sample)
    table = sample.table
    loaded = {"metadata": table.metadata, "metadata-location": table.metadata_location}
    monkeypatch.setattr(sample.catalog, "commit_table", lambda *_: CommitTableResponse.model_validate(loaded))
    with pytest.raises(CommitUnknown, match="the response to the commit was lost") as raised:
        send(attempt.change, "the commit")
    assert f"does not contain snapshot {attempt.draft.snapshot_id}" in raised.value.detail
    assert attempt.left == 2


def test_files_of_a_snapshot_that_was_applied_and_has_expired_already_stay(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the manifests of what came later show that it was ever there."""
    state = sample.iceberg.load()
    sent: list[TableChange] = []
    real = sample.catalog.commit_table

    def commit_table(table: Table, *arguments: object) -> CommitTableResponse:
        sent.append(TableChange(table, *arguments))  # type: ignore[arg-type]
        return real(table, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(sample.catalog, "commit_table", commit_table)
    landed = sample.commit({2: "b"}, state=state)
    sample.commit({3: "c"})
    with sample.table.maintenance.expire_snapshots() as expiry:
        expiry.by_id(landed.snapshot_id)
    assert sample.table.metadata.snapshot_by_id(landed.snapshot_id) is None

    def refuse(*_: object) -> None:
        raise pyiceberg.CommitFailedException("refused, since its first request was applied")

    monkeypatch.setattr(sample.catalog, "commit_table", refuse)
    data = next(file for file in sample.home.rglob("data/*.parquet"))
    with pytest.raises(CommitUnknown):
        send(replace(sent[0], files=(f"file://{data}",)), "the commit")
    assert data.exists()
    assert sample.rows() == {1: "a", 2: "b", 3: "c"}


def merge(sample: Sample) -> None:
    sample.iceberg.merge_manifests(sample.iceberg.load())


def rewrite(sample: Sample) -> None:
    rewrite_manifests(sample.catalog, NAME, sample.clock, sample.ids)


@pytest.mark.parametrize("act", [merge, rewrite], ids=lambda it: it.__name__)
def test_manifests_that_only_repeat_others_stay_if_their_snapshot_was_applied_and_has_expired_already(
    sample: Sample, monkeypatch: pytest.MonkeyPatch, act: Callable[[Sample], None]
) -> None:
    """No entry has the id of that snapshot: only the lists of later ones name the manifests."""
    monkeypatch.setattr(drafts, "FAN_IN", 2)
    sample.commit({2: "b"})
    real = sample.catalog.commit_table

    def repeated(*arguments: object) -> None:
        monkeypatch.setattr(sample.catalog, "commit_table", real)
        landed = real(*arguments).metadata.current_snapshot_id  # type: ignore[arg-type]
        assert landed is not None
        sample.commit({3: "c"})
        with sample.table.maintenance.expire_snapshots() as expiry:
            expiry.by_id(landed)
        raise pyiceberg.CommitFailedException("refused, since its first request was applied")

    monkeypatch.setattr(sample.catalog, "commit_table", repeated)
    with pytest.raises(CommitUnknown, match="was rejected, and the table does not show why"):
        act(sample)
    assert sample.rows() == {1: "a", 2: "b", 3: "c"}


def test_a_conflict_reads_each_manifest_that_was_added_since_once_and_no_other(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sample.table.metadata.current_snapshot_id
    assert first is not None
    sample.commit({2: "b"})
    with sample.table.maintenance.expire_snapshots() as expiry:
        expiry.by_id(first)  # which added a manifest that every later snapshot lists
    attempt = Attempt(sample)
    new = [manifest.path for rows in ({3: "c"}, {4: "d"}) for manifest in commit_proposal(sample, rows)]
    read: list[str] = []
    real = ManifestFile.fetch_manifest_entry

    def fetch(manifest: ManifestFile, *arguments: Any, **named: Any) -> list[ManifestEntry]:
        read.append(manifest.manifest_path)
        return real(manifest, *arguments, **named)

    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", fetch)
    answering(sample, monkeypatch, pyiceberg.CommitFailedException("refused"), applied=False)
    with pytest.raises(CommitConflict):
        send(attempt.change, "the commit")
    assert sorted(read) == sorted(new)


def commit_proposal(sample: Sample, rows: dict[int, str]) -> tuple[Manifest, ...]:
    """Commit a batch; returns its manifests."""
    proposal = sample.proposal(rows)
    sample.iceberg.commit(sample.iceberg.load(), proposal)
    return proposal.manifests
