"""The outcome of a commit: applied, not applied, or unknown. Commits are sent here and nowhere else.

    send ──► catalog ──► an answer that contains the change ─────────────────────────► applied
                │
                └─ anything else ──► load the table, and look
                                       ├─ the change is there ───────────────────────► applied
                                       ├─ refused before it was sent ────────────────► not applied
                                       ├─ refused, and the table shows why ──────────► not applied
                                       └─ else, or the table cannot be loaded ───────► unknown

An applied change returns the metadata that contains it. `CommitConflict` is raised for one that was not applied, and
the files that it alone refers to are removed. `CommitUnknown` is raised where that is not known, and a plain
TransientError where the catalog let nobody in (logins, rights, quotas): after both nothing may be removed.

Every change is sent once. A client that repeats a request by itself (`rest.py`, `glue.py` switch that off) may be
refused by what its first request did. A refusal alone is no proof either: a proxy may have repeated the request. So the
table has to show why it was refused, and that the change can neither be hidden in it nor arrive later.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchNamespaceError,
    NoSuchTableError,
)
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AddSnapshotUpdate

from calve.catalog.checked import NotSent
from calve.catalog.discard import discard, discard_old_metadata
from calve.catalog.embedded import EmbeddedCatalog, TableCommit
from calve.catalog.failures import FAILURES, is_refused, text_of, transient
from calve.catalog.hints import hint_for
from calve.errors import CalveError, CommitConflict, CommitUnknown, InvalidInput, TransientError
from calve.faults import reached

_CONFLICTS: tuple[type[Exception], ...] = (CommitFailedException, NoSuchTableError, NoSuchNamespaceError)
_FAILED: tuple[type[Exception], ...] = (
    *_CONFLICTS,
    *(CommitStateUnknownException, ValueError, NotImplementedError),
    *FAILURES,
)
"""ValueError: an answer that cannot be parsed, among others. NotImplementedError: 501 in an answer."""
_NOT_LOADED: tuple[type[Exception], ...] = (CalveError, ValueError, NotImplementedError, *FAILURES)
_LOADING_MODE = "snapshot-loading-mode"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Change(TableCommit):
    """A change of one table that is sent once, how it is recognised, and what belongs to it."""

    files: tuple[str, ...] = ()
    """Files that this attempt alone refers to; they are removed if it was not applied."""
    done: Callable[[Table], bool] | None = None
    """Whether a table shows the effect of a change that adds no snapshot."""

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot that it adds."""
        return next((one.snapshot for one in self.updates if isinstance(one, AddSnapshotUpdate)), None)

    @property
    def label(self) -> str:
        """How messages call the table."""
        return ".".join(self.table.name())

    def is_in(self, table: Table) -> bool:
        """Whether it was applied, as far as this state of the table shows."""
        if self.done is not None:
            return self.done(table)
        return self.snapshot is not None and _has(table.metadata, self.snapshot)


def send(change: Change, what: str, point: str = "") -> TableMetadata:
    """Send a change; the metadata that contains it. `point` names its failpoints.

    Raises CommitConflict when it was not applied, CommitUnknown, TransientError.
    """
    return send_all([change], what, point)[0]


def send_all(
    changes: Sequence[Change], what: str, point: str = "", unchanged: Sequence[Table] = ()
) -> list[TableMetadata]:
    """Send changes that are applied together or not at all, if no table of `unchanged` changed meanwhile.

    Raises as `send`, and InvalidInput where the catalog cannot do it; nothing was sent then, and files are removed.
    """
    catalog = changes[0].table.catalog
    if (len(changes) > 1 or unchanged) and not isinstance(catalog, EmbeddedCatalog):
        _discard(changes, "the catalog cannot change several tables at once")
        raise _not_together(catalog, changes)
    try:
        if point:
            reached(f"{point}.before")
        after = _post(catalog, changes, unchanged)
        if point:
            reached(f"{point}.after")
    except _FAILED as error:
        after = _found(catalog, changes, what, error)
    for change, metadata in zip(changes, after, strict=True):
        discard_old_metadata(change.table, metadata)
    return after


def _post(catalog: Catalog, changes: Sequence[Change], unchanged: Sequence[Table]) -> list[TableMetadata]:
    if isinstance(catalog, EmbeddedCatalog) and (len(changes) > 1 or unchanged):
        return catalog.commit_tables(changes, unchanged)
    answers = [catalog.commit_table(one.table, one.requirements, one.updates) for one in changes]
    for change, answer in zip(changes, answers, strict=True):
        if not change.is_in(_answered(change.table, answer)):
            # As after a redirect, which makes a request to load of one to commit.
            what = f"snapshot {change.snapshot.snapshot_id}" if change.snapshot else "the change"
            raise ValueError(f"the answer does not contain {what}")
    return [answer.metadata for answer in answers]


def _answered(table: Table, answer: CommitTableResponse) -> Table:
    return Table(table.name(), answer.metadata, answer.metadata_location, table.io, table.catalog)


def _found(catalog: Catalog, changes: Sequence[Change], what: str, error: Exception) -> list[TableMetadata]:
    """What the tables say about changes that were not answered as expected."""
    tables: list[Table] | None = None
    gone = False
    try:
        tables = [catalog.load_table(change.table.name()) for change in changes]
    except (NoSuchTableError, NoSuchNamespaceError):
        gone = True
    except _NOT_LOADED as loading:
        _log.warning("%s: the table could not be loaded: %s", what, text_of(loading))
    if tables is not None and all(change.is_in(table) for change, table in zip(changes, tables, strict=True)):
        _log.info("%s was applied, although its answer was: %s", what, text_of(error))
        return [table.metadata for table in tables]
    if isinstance(error, NotSent):
        certain = gone or tables is not None
    else:
        certain = tables is not None and isinstance(error, _CONFLICTS) and _show_why(changes, tables)
    if certain:
        _discard(changes, f"{what} met another change of the table and was not applied")
        raise CommitConflict(f"{what} met another change of the table", detail=text_of(error)) from error
    raise _uncertain(what, error) from error


def _show_why(changes: Sequence[Change], tables: Sequence[Table]) -> bool:
    return all(_shows_why(change, table) for change, table in zip(changes, tables, strict=True))


def _shows_why(change: Change, table: Table) -> bool:
    """Whether a table shows why a change was refused, and that it is not hidden in it and can never be applied."""
    metadata = table.metadata
    if not _breaks(change, metadata) or metadata.table_uuid != change.table.metadata.table_uuid:
        return False
    if change.snapshot is None:
        return True
    last: int = getattr(metadata, "last_sequence_number", 0)  # tables of version 1 have none
    overtaken = last >= (change.snapshot.sequence_number or 1)  # else the request may still arrive, and be applied
    return overtaken and not _hides_snapshots(table) and not (change.files and _is_referred_to(change, table))


def _breaks(change: Change, metadata: TableMetadata) -> bool:
    """Whether the metadata does not meet what the change requires."""
    try:
        for requirement in change.requirements:
            requirement.validate(metadata)
    except CommitFailedException:
        return True
    return False


def _hides_snapshots(table: Table) -> bool:
    """Whether a snapshot that is not shown may be in the table all the same."""
    return shows_no_history(table.metadata) or table.catalog.properties.get(_LOADING_MODE) == "refs"


def shows_no_history(metadata: TableMetadata) -> bool:
    """Whether there were snapshots before the only one: some catalogs (Nessie) keep them to themselves."""
    return len(metadata.snapshots) == 1 and (metadata.snapshots[0].sequence_number or 0) > 1


def _is_referred_to(change: Change, table: Table) -> bool:
    """Whether a snapshot that came later has files of the change, or cannot be read: its own may have expired since.

    Entries of manifests keep the id of the snapshot that added their file, whoever rewrites the manifest.
    """
    before = {snapshot.snapshot_id for snapshot in change.table.metadata.snapshots}
    own = change.snapshot.snapshot_id if change.snapshot else None
    try:
        for snapshot in table.metadata.snapshots:
            if snapshot.snapshot_id in before:
                continue
            for manifest in snapshot.manifests(table.io):
                if manifest.added_snapshot_id in before:
                    continue
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
                if any(entry.snapshot_id == own for entry in entries):
                    return True
    except (OSError, ValueError) as error:
        _log.warning("manifests of %s could not be read: %s", change.label, text_of(error))
        return True
    return False


def _uncertain(what: str, error: Exception) -> TransientError:
    if is_refused(error):
        return transient(f"{what} failed", error)
    told = {"detail": text_of(error), "hint": hint_for(error)}
    if isinstance(error, _CONFLICTS):
        return CommitUnknown(f"{what} was refused, and the table does not show why", **told)
    return CommitUnknown(f"the answer to {what} was lost", **told)


def _discard(changes: Sequence[Change], why: str) -> None:
    for change in changes:
        discard(change.table.io, change.files, why)


def _has(metadata: TableMetadata, snapshot: Snapshot) -> bool:
    return metadata.snapshot_by_id(snapshot.snapshot_id) is not None


def _not_together(catalog: Catalog, changes: Sequence[Change]) -> InvalidInput:
    return InvalidInput(
        "the catalog cannot change several tables at once",
        detail=f"They are {', '.join(one.label for one in changes)}, in a catalog of type "
        f"{catalog.properties.get('type', 'unknown')}.",
        hint="Keep these components in a SQLite catalog.",
    )
