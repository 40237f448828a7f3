"""The outcome of a commit: applied, not applied, or unknown. Commits are sent here and nowhere else.

    send ──► catalog ──► a response that contains the change ────────────────────────► applied
                │
                └─ anything else ──► load the table, and check
                                       ├─ the change is there ───────────────────────► applied
                                       ├─ rejected before it was sent ───────────────► not applied
                                       ├─ rejected, and the table shows why ─────────► not applied
                                       └─ else, or the table cannot be loaded ───────► unknown

An applied change returns the metadata that contains it. `CommitConflict` is raised for one that was not applied, and
the files that only it refers to are removed. `CommitUnknown` is raised if the outcome is unknown, and a plain
TransientError if the catalog denied access (logins, rights, quotas): after both nothing may be removed.

Every change is sent once. A client that retries a request by itself (`rest.py` and `glue.py` disable that) may be
rejected because of its own first request. A rejection alone proves nothing either: a proxy may have retried the
request. So the table must show why it was rejected, and that the change can neither be hidden in it nor arrive later.
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
from calve.errors import CalveError, CommitConflict, CommitUnknown, InvalidInput, TransientError
from calve.faults import reached
from calve.storage.hints import hint_for

_CONFLICTS: tuple[type[Exception], ...] = (CommitFailedException, NoSuchTableError, NoSuchNamespaceError)
_FAILED: tuple[type[Exception], ...] = (
    *_CONFLICTS,
    *(CommitStateUnknownException, ValueError, NotImplementedError),
    *FAILURES,
)
"""ValueError: a response that cannot be parsed, among others. NotImplementedError: status 501."""
_NOT_LOADED: tuple[type[Exception], ...] = (CalveError, ValueError, NotImplementedError, *FAILURES)
_LOADING_MODE = "snapshot-loading-mode"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TableChange(TableCommit):
    """A change of one table that is sent once, how to recognise it, and its files."""

    files: tuple[str, ...] = ()
    """Files that only this attempt refers to; they are removed if it was not applied."""
    done: Callable[[Table], bool] | None = None
    """Whether a table shows the effect of a change that adds no snapshot."""

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot that it adds, if any."""
        return next((one.snapshot for one in self.updates if isinstance(one, AddSnapshotUpdate)), None)

    @property
    def label(self) -> str:
        """The table's name in messages."""
        return ".".join(self.table.name())

    def is_in(self, table: Table) -> bool:
        """Whether this state of the table shows that it was applied."""
        if self.done is not None:
            return self.done(table)
        return self.snapshot is not None and _has(table.metadata, self.snapshot)


def send(change: TableChange, what: str, point: str = "") -> TableMetadata:
    """Send a change, and return the metadata that contains it. `point` names its failpoints.

    Raises CommitConflict when it was not applied, CommitUnknown, TransientError.
    """
    return send_all([change], what, point)[0]


def send_all(
    changes: Sequence[TableChange], what: str, point: str = "", unchanged: Sequence[Table] = ()
) -> list[TableMetadata]:
    """Send changes that are applied atomically, if no table of `unchanged` changed meanwhile.

    Raises like `send`, and InvalidInput if the catalog cannot do that; nothing was sent then, and files are removed.
    """
    catalog = changes[0].table.catalog
    if (len(changes) > 1 or unchanged) and not isinstance(catalog, EmbeddedCatalog):
        _discard(changes, "the catalog cannot change several tables atomically")
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


def _post(catalog: Catalog, changes: Sequence[TableChange], unchanged: Sequence[Table]) -> list[TableMetadata]:
    if isinstance(catalog, EmbeddedCatalog) and (len(changes) > 1 or unchanged):
        return catalog.commit_tables(changes, unchanged)
    answers = [catalog.commit_table(one.table, one.requirements, one.updates) for one in changes]
    for change, answer in zip(changes, answers, strict=True):
        if not change.is_in(_response_as_table(change.table, answer)):
            # A redirect turns a commit request into a load request.
            what = f"snapshot {change.snapshot.snapshot_id}" if change.snapshot else "the change"
            raise ValueError(f"the response does not contain {what}")
    return [answer.metadata for answer in answers]


def _response_as_table(table: Table, answer: CommitTableResponse) -> Table:
    return Table(table.name(), answer.metadata, answer.metadata_location, table.io, table.catalog)


def _found(catalog: Catalog, changes: Sequence[TableChange], what: str, error: Exception) -> list[TableMetadata]:
    """Decide by the tables what became of changes without the expected response."""
    tables: list[Table] | None = None
    gone = False
    try:
        tables = [catalog.load_table(change.table.name()) for change in changes]
    except (NoSuchTableError, NoSuchNamespaceError):
        gone = True
    except _NOT_LOADED as loading:
        _log.warning("%s: the table could not be loaded: %s", what, text_of(loading))
    if tables is not None and all(change.is_in(table) for change, table in zip(changes, tables, strict=True)):
        _log.info("%s was applied, although its response was: %s", what, text_of(error))
        return [table.metadata for table in tables]
    if isinstance(error, NotSent):
        certain = gone or tables is not None
    else:
        certain = tables is not None and isinstance(error, _CONFLICTS) and _show_why(changes, tables)
    if certain:
        _discard(changes, f"{what} conflicted with another change of the table and was not applied")
        raise CommitConflict(f"{what} conflicted with another change of the table", detail=text_of(error)) from error
    raise _uncertain(what, error) from error


def _show_why(changes: Sequence[TableChange], tables: Sequence[Table]) -> bool:
    return all(_shows_why(change, table) for change, table in zip(changes, tables, strict=True))


def _shows_why(change: TableChange, table: Table) -> bool:
    """Whether a table shows why a change was rejected, and that it is neither hidden in it nor applied later."""
    metadata = table.metadata
    if not _breaks(change, metadata) or metadata.table_uuid != change.table.metadata.table_uuid:
        return False
    if change.snapshot is None:
        return True
    last: int = getattr(metadata, "last_sequence_number", 0)  # tables of version 1 have none
    overtaken = last >= (change.snapshot.sequence_number or 1)  # else the request may still arrive and be applied
    return overtaken and not _hides_snapshots(table) and not _is_referred_to(change, change.snapshot, table)


def _breaks(change: TableChange, metadata: TableMetadata) -> bool:
    """Whether the metadata violates the requirements of the change."""
    try:
        for requirement in change.requirements:
            requirement.validate(metadata)
    except CommitFailedException:
        return True
    return False


def _hides_snapshots(table: Table) -> bool:
    """Whether the table may have snapshots that it does not show."""
    return shows_no_history(table.metadata) or table.catalog.properties.get(_LOADING_MODE) == "refs"


def shows_no_history(metadata: TableMetadata) -> bool:
    """Whether there were snapshots before the only one: some catalogs (Nessie) hide them."""
    return len(metadata.snapshots) == 1 and (metadata.snapshots[0].sequence_number or 0) > 1


def _is_referred_to(change: TableChange, own: Snapshot, table: Table) -> bool:
    """Whether a later snapshot has files of the change, whose own may have expired since, or cannot be read.

    Manifest entries keep the id of the snapshot that added their file, also when a manifest is rewritten. So a manifest
    of the change may have no entry with its id; the list that names the manifest tells.
    """
    before = {snapshot.snapshot_id for snapshot in change.table.metadata.snapshots}
    least = own.sequence_number or 0  # of manifests with files of the change; 0 in tables of version 1, for all
    seen: set[str] = set()
    try:
        for snapshot in table.metadata.snapshots:
            if snapshot.snapshot_id in before:
                continue
            for manifest in snapshot.manifests(table.io):
                if manifest.added_snapshot_id == own.snapshot_id or manifest.manifest_path in change.files:
                    return True
                if manifest.manifest_path in seen or (manifest.sequence_number or 0) < least:
                    continue
                seen.add(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
                if any(entry.snapshot_id == own.snapshot_id for entry in entries):
                    return True
    except (OSError, ValueError) as error:
        _log.warning("manifests of %s could not be read: %s", change.label, text_of(error))
        return True
    return False


def _uncertain(what: str, error: Exception) -> TransientError:
    if is_refused(error):
        return transient(f"{what} failed", error)
    texts = {"detail": text_of(error), "hint": hint_for(error)}
    if isinstance(error, _CONFLICTS):
        return CommitUnknown(f"{what} was rejected, and the table does not show why", **texts)
    return CommitUnknown(f"the response to {what} was lost", **texts)


def _discard(changes: Sequence[TableChange], why: str) -> None:
    for change in changes:
        discard(change.table.io, change.files, why)


def _has(metadata: TableMetadata, snapshot: Snapshot) -> bool:
    return metadata.snapshot_by_id(snapshot.snapshot_id) is not None


def _not_together(catalog: Catalog, changes: Sequence[TableChange]) -> InvalidInput:
    return InvalidInput(
        "the catalog cannot change several tables atomically",
        detail=f"They are {', '.join(one.label for one in changes)}, in a catalog of type "
        f"{catalog.properties.get('type', 'unknown')}.",
        hint="Keep these components in a SQLite catalog.",
    )
