"""The SQLite catalog of one machine, shared by several processes.

It is pyiceberg's `SqlCatalog`, with the same tables and responses, and four differences: the database is in WAL mode
and waits for locks; parsed metadata is cached while the table's metadata location stays the same (metadata files are
immutable); a commit on top of the table's current metadata does not load it again, may change several tables
atomically, and is repeated on newer metadata while its requirements hold; metadata files are written quickly
(`MetadataTexts`), since all but one snapshot of a commit's metadata was serialized before. A table that a commit
creates takes pyiceberg's path. The last step of both is a compare-and-swap of the metadata location.
"""

import fcntl
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    TableRequirement,
    TableUpdate,
    _apply_table_update,
    _TableMetadataUpdateContext,
)
from pyiceberg.typedef import Identifier, Properties
from sqlalchemy import event

from calve.catalog.checked import Checked, NotSent
from calve.catalog.discard import discard
from calve.catalog.guarded import Guarded, with_log_entry
from calve.catalog.row_lineage import check_snapshots, check_writable, metadata_text, with_upgrade

_GROWING = {"snapshots", "snapshot_log", "metadata_log"}


class MetadataTexts:
    """Serializes the metadata of one table.

    The lists that grow with the history (snapshots and the two logs) are joined from cached texts; pyiceberg serializes
    everything else.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int | None], str] = {}
        self._log: dict[str, str] = {}

    def text(self, metadata: TableMetadata) -> str:
        """The content of a metadata file."""
        base = metadata_text(metadata, _GROWING)
        snapshots: dict[tuple[int, int | None], str] = {}
        for snapshot in metadata.snapshots:
            # A snapshot never changes, except for its parent id, which an expiry clears.
            key = (snapshot.snapshot_id, snapshot.parent_snapshot_id)
            snapshots[key] = self._known.get(key) or snapshot.model_dump_json(exclude_none=True)
        self._known = snapshots
        log = {
            entry.metadata_file: self._log.get(entry.metadata_file) or entry.model_dump_json()
            for entry in metadata.metadata_log
        }
        self._log = log
        lists = {
            "snapshots": snapshots.values(),
            "snapshot-log": (
                f'{{"snapshot-id":{entry.snapshot_id},"timestamp-ms":{entry.timestamp_ms}}}'
                for entry in metadata.snapshot_log
            ),
            "metadata-log": log.values(),
        }
        return base[:-1] + "".join(f',"{name}":[{",".join(texts)}]' for name, texts in lists.items()) + "}"


BUSY_MS = 30_000
"""How long a process waits for another process's write to the database; a write takes milliseconds."""

_KNOWN_TABLES = 64
# Every commit or new table needs these: plain SQL, which SQLAlchemy passes through, takes a fraction of the time of
# its expressions.
_LOCATION = (
    "SELECT metadata_location FROM iceberg_tables WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?"
)
_LOCATIONS = "SELECT table_namespace, table_name, metadata_location FROM iceberg_tables WHERE catalog_name = ?"
_NAMESPACE = (
    "SELECT 1 FROM iceberg_tables"
    " WHERE catalog_name = ?1 AND (table_namespace = ?2 OR table_namespace LIKE ?3 ESCAPE '!')"
    " UNION ALL SELECT 1 FROM iceberg_namespace_properties"
    " WHERE catalog_name = ?1 AND (namespace = ?2 OR namespace LIKE ?3 ESCAPE '!') LIMIT 1"
)
_PROPERTIES = (
    "SELECT property_key, property_value FROM iceberg_namespace_properties WHERE catalog_name = ? AND namespace = ?"
)
_SWAP = (
    "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = ?"
    " WHERE catalog_name = ? AND table_namespace = ? AND table_name = ? AND metadata_location = ?"
)


@dataclass(frozen=True)
class TableCommit:
    """Updates of one table, and their requirements."""

    table: Table
    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]


class EmbeddedCatalog(Checked, Guarded, SqlCatalog):
    """A catalog in one SQLite file."""

    def _init_catalog(self) -> None:
        self._known: dict[Identifier, tuple[str, TableMetadata]] = {}
        self._known_lock = threading.Lock()
        self._texts: dict[Identifier, MetadataTexts] = {}
        self._written: dict[Identifier, str] = {}
        """The last metadata file of each table that this process wrote."""
        event.listen(self.engine, "connect", _prepare)
        database = self.engine.url.database
        if not database:
            return super()._init_catalog()
        # SQLite does not serialize switching to WAL and creating tables: one process at a time does both.
        with Path(f"{database}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return super()._init_catalog()

    def load_table(self, identifier: str | Identifier) -> Table:
        """Load the current state of a table."""
        name = Catalog.identifier_to_tuple(identifier)
        return self._known_at(name, self._location(name)) or self._loaded(name)

    def namespace_exists(self, identifier: str | Identifier) -> bool:
        """Whether a namespace was created, or contains tables or namespaces."""
        namespace = Catalog.namespace_to_string(Catalog.identifier_to_tuple(identifier), NoSuchNamespaceError)
        below = namespace.replace("!", "!!").replace("_", "!_").replace("%", "!%") + ".%"
        with self.engine.connect() as connection:
            return connection.exec_driver_sql(_NAMESPACE, (self.name, namespace, below)).first() is not None

    def load_namespace_properties(self, namespace: str | Identifier) -> Properties:
        """The properties of a namespace. Raises NoSuchNamespaceError."""
        name = Catalog.namespace_to_string(namespace)
        with self.engine.connect() as connection:
            rows = connection.exec_driver_sql(_PROPERTIES, (self.name, name)).all()
        if not rows and not self.namespace_exists(namespace):
            raise NoSuchNamespaceError(f"Namespace {name} does not exist")
        return {row[0]: row[1] for row in rows}

    def load_tables(self, names: Sequence[Identifier]) -> list[Table]:
        """Load a consistent state of several tables. Raises NoSuchTableError."""
        while True:
            locations = self._locations(names)
            tables = [self._known_at(name, locations[name]) or self._loaded(name) for name in names]
            # A table that was loaded after the query is newer, unless its location is the same.
            if all(table.metadata_location == locations[table.name()] for table in tables):
                return tables

    def _known_at(self, name: Identifier, location: str | None) -> Table | None:
        with self._known_lock:
            known, metadata = self._known.get(name, ("", None))
        return self._table(name, known, metadata) if metadata is not None and known == location else None

    def _loaded(self, name: Identifier) -> Table:
        table = super().load_table(name)
        self._remember(name, table.metadata_location, table.metadata)
        return table

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Apply updates if the requirements hold for the current state, however often others change it meanwhile.

        Raises NotSent if they do not hold.
        """
        current = table
        while True:
            try:
                _check(current, requirements)
                return self._commit_on(current, updates)
            except CommitFailedException:
                location = self._location(table.name())
                if location == current.metadata_location:
                    raise
                if location is None:  # it is about to be created
                    return super().commit_table(table, requirements, updates)
                current = self.load_table(table.name())

    def commit_tables(self, commits: Sequence[TableCommit], unchanged: Sequence[Table] = ()) -> list[TableMetadata]:
        """Apply the updates of all tables or of none, if neither these nor the tables `unchanged` changed meanwhile.

        Raises NotSent when nothing was applied.
        """
        for commit in commits:
            _check(commit.table, commit.requirements)
        staged: list[tuple[str, TableMetadata]] = []
        try:
            for commit in commits:
                staged.append(self._stage(commit.table, commit.updates))  # noqa: PERF401 - what was staged is removed
        except (OSError, CommitFailedException):
            _remove([(c.table, location) for c, (location, _) in zip(commits, staged, strict=False)])
            raise
        swaps = [(c.table, location) for c, (location, _) in zip(commits, staged, strict=True)]
        self._swap(swaps, unchanged)
        for commit, (location, metadata) in zip(commits, staged, strict=True):
            self._remember(commit.table.name(), location, metadata)
        return [metadata for _, metadata in staged]

    def _commit_on(self, table: Table, updates: tuple[TableUpdate, ...]) -> CommitTableResponse:
        location, metadata = self._stage(table, updates)
        self._swap([(table, location)])
        self._remember(table.name(), location, metadata)
        answer: dict[str, Any] = {"metadata": metadata, "metadata-location": location}
        return CommitTableResponse(**answer)

    def _stage(self, table: Table, updates: tuple[TableUpdate, ...]) -> tuple[str, TableMetadata]:
        """Write the updated metadata; its location and the metadata."""
        if self._written.get(table.name()) != table.metadata_location:
            check_writable(table)
        try:
            metadata = _updated(table.metadata, updates, table.metadata_location)
        except ValueError as error:
            raise NotSent(str(error)) from error
        location = self._next_metadata_location(metadata, table.metadata_location)
        text = self._texts.setdefault(table.name(), MetadataTexts()).text(metadata)
        with table.io.new_output(location).create() as stream:
            stream.write(text.encode())
        self._written[table.name()] = location
        return location, metadata

    def _location(self, name: Identifier) -> str | None:
        return self._locations([name])[name]

    def _locations(self, names: Sequence[Identifier]) -> dict[Identifier, str | None]:
        """The current metadata locations of tables."""
        keys = [(Catalog.namespace_to_string(Catalog.namespace_from(n)), Catalog.table_name_from(n)) for n in names]
        among = " OR ".join(["(table_namespace = ? AND table_name = ?)"] * len(keys))
        given = (self.name, *(part for key in keys for part in key))
        with self.engine.connect() as connection:
            rows = connection.exec_driver_sql(f"{_LOCATIONS} AND ({among})", given).all()
        found: dict[tuple[str, str], str] = {(row[0], row[1]): row[2] for row in rows}
        return {name: found.get(key) for name, key in zip(names, keys, strict=True)}

    def _swap(self, swaps: Sequence[tuple[Table, str]], unchanged: Sequence[Table] = ()) -> None:
        """Swap the metadata of tables, all or none, if neither these nor the tables `unchanged` changed."""
        try:
            with self.engine.begin() as connection:
                for table, new in swaps:
                    old = table.metadata_location
                    if connection.exec_driver_sql(_SWAP, (new, old, *self._row(table.name()), old)).rowcount < 1:
                        raise _overtaken(table)
                for table in unchanged:  # after the first update, which locks out other writers
                    found = connection.exec_driver_sql(_LOCATION, self._row(table.name())).scalar()
                    if found != table.metadata_location:
                        raise _overtaken(table)
        except CommitFailedException:
            _remove(swaps)
            raise

    def _row(self, name: Identifier) -> tuple[str, str, str]:
        """What identifies the row of a table."""
        namespace = Catalog.namespace_to_string(Catalog.namespace_from(name))
        return self.name, namespace, Catalog.table_name_from(name)

    def _remember(self, name: Identifier, location: str, metadata: TableMetadata) -> None:
        with self._known_lock:
            self._known.pop(name, None)
            self._known[name] = (location, metadata)
            while len(self._known) > _KNOWN_TABLES:
                del self._known[next(iter(self._known))]

    def _table(self, name: Identifier, location: str, metadata: TableMetadata) -> Table:
        return Table(name, metadata, location, self._load_file_io(location=location), self)


def _remove(staged: Sequence[tuple[Table, str]]) -> None:
    for table, location in staged:
        discard(table.io, [location], "their commit was not applied")


def _check(table: Table, requirements: Sequence[TableRequirement]) -> None:
    try:
        for requirement in requirements:
            requirement.validate(table.metadata)
    except CommitFailedException as error:
        raise NotSent(str(error)) from error


def _overtaken(table: Table) -> NotSent:
    """The error for a table that changed meanwhile; this process rolls the transaction back."""
    return NotSent(f"Table has been updated by another process: {'.'.join(table.name())}")


def _prepare(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.close()


def _updated(base: TableMetadata, updates: tuple[TableUpdate, ...], location: str) -> TableMetadata:
    """Like pyiceberg's `update_table_metadata`, without its deep copy, which takes longer with every snapshot."""
    metadata, others = with_upgrade(base, updates)
    check_snapshots(metadata, others)
    context = _TableMetadataUpdateContext()
    for change in others:
        metadata = _apply_table_update(change, metadata, context)
    return with_log_entry(metadata, location, base.last_updated_ms)
