"""One Iceberg table as one sink uses it: load, commit, write manifests, merge manifests.

    load ──► TableState (its handle is pyiceberg's table)
                │
    commit: manifest list (new manifests + those of the head) ──► snapshot, refs, property ──► catalog
                                                               └─► sometimes: expiry, in a separate commit

`commit` is one attempt on exactly the state it is given. It does not retry. An attempt that certainly failed removes
its own manifest list, but neither the manifests of the batch nor its deletes: the next attempt may use them. All
requests go through one catalog client: only one thread at a time may call `load`, `commit`, `plan_keys` and
`merge_manifests`; any thread may call `standing`, `write_target`, `write_manifests` and `missing_files`.
"""

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataV1
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import TableUpdate

from calve.catalog.discard import discard, remove
from calve.catalog.failures import is_relayed, is_told_by_catalog, loading, text_of, trying
from calve.catalog.guarded import locations_of
from calve.catalog.outcome import TableChange, send, shows_no_history
from calve.clock import Clock, IdSource
from calve.errors import CalveError, InvalidInput, TerminalError, TransientError
from calve.faults import reached
from calve.iceberg.files.manifest_cache import ManifestCache, ManifestLine
from calve.iceberg.files.manifests import manifest_file, manifest_place, write_existing, write_manifests
from calve.iceberg.files.names import table_mark
from calve.iceberg.files.options import file_options
from calve.iceberg.files.store import absent, io_properties_of
from calve.iceberg.loading import check_upgradable, unpartitioned_spec_id
from calve.iceberg.planning.facts import TableSummary, standing_of
from calve.iceberg.planning.key_scan import KeyScan, KeyScans
from calve.iceberg.planning.rewriting import rewriting_target
from calve.iceberg.planning.table_details import table_health
from calve.iceberg.planning.table_scan import Scan
from calve.iceberg.planning.travel import AsOf
from calve.iceberg.schema.arrow import parse_schema
from calve.iceberg.schema.evolution import Shape, evolution, with_defaults, written_schema
from calve.iceberg.schema.fitting import as_known, field_named, needs_of
from calve.iceberg.schema.readable import schema_with
from calve.iceberg.schema.staged import columns_of_any
from calve.iceberg.snapshot.draft import (
    Draft,
    MergeGroup,
    SnapshotContents,
    merge_groups,
    new_draft,
    progress_updates,
    requirements,
    retirement_update,
    snapshot_change,
    unsent_files,
)
from calve.iceberg.snapshot.expired_files import load_whole
from calve.iceberg.snapshot.expiry import expire, may_be_due, refusal_of, retention_warning
from calve.iceberg.snapshot.history import (
    SnapshotInfos,
    added_counts,
    ancestors_of,
    has_data,
    head_of,
    new_summary,
    other_sinks,
    stated_progress,
)
from calve.iceberg.snapshot.removal import NOTHING_REMOVED, ManifestRemoval, remove_all, remove_deletes
from calve.iceberg.snapshot.removal_journal import RemovalJournal
from calve.iceberg.snapshot.retention import ExpiryPolicy
from calve.model.checkpoint import RowKind
from calve.model.files import NO_NEEDS, ColumnNeeds, KeyPlace, Manifest, WriteTarget, WrittenFile
from calve.model.health import TableHealth
from calve.model.progress import Progress
from calve.model.spec import RetentionOptions, TableName, WriteOptions
from calve.model.table import Proposal, TableState
from calve.storage.filesystems import expires_soon, keeps_everything, task_properties_of, with_place_apart
from calve.storage.hints import is_refused

MISSING_SECONDS = 10.0
"""Seconds for which a catalog must not find the table, or show an older state of it, before that counts."""
_LOOK_SHARE = 100
"""Expired snapshots are looked for once every n / _LOOK_SHARE commits, where n is the number of snapshots."""

log = logging.getLogger(__name__)


class IcebergTable:
    """The table of one sink. The input has the columns of `shape`, in that order; without it, the table's current ones.

    Columns are matched by name and written with the field ids and types of the table as last loaded. Schema changes by
    others while a batch is written (a column added, renamed or dropped, a type widened) do not affect its files.
    """

    def __init__(  # noqa: PLR0913 - those after the star are options by name
        self,
        table: Table,
        sink_id: str,
        key: Sequence[str],
        clock: Clock,
        ids: IdSource,
        *,
        shape: Shape | None = None,
        keys_at: KeyPlace | None = None,
        state_location: str = "",
        retention: RetentionOptions | None = None,
        removals: RemovalJournal | None = None,
    ) -> None:
        """Without `removals`, snapshots expire and their files stay."""
        self._catalog = table.catalog
        self._identifier = table.name()
        self._name = ".".join(table.name())
        self._sink_id = sink_id
        self._clock = clock
        self._ids = ids
        self._shape = shape
        self._branch = shape.branch if shape else MAIN_BRANCH
        self._first_schema = table.schema()
        theirs = table.schema() if shape is None else as_known(table.metadata, shape.given)
        self._key_ids = tuple(field_named(theirs.fields, name).field_id for name in key)
        self._keys_at = keys_at
        self._state_location = state_location
        self._keeps_keys = keeps_everything(table.location())
        """Whether the store refuses to delete key files."""
        self._has_apart = False
        """Whether key files exist that a run wrote outside of the table's location."""
        self._latest = self._reaching_keys(table)
        self._loaded_ms = clock.now_ms()
        self._missing_since: float | None = None
        """When the catalog first did not find the table; None if it did."""
        self._older_since: float | None = None
        """When the catalog first showed an older state of the table than is known; None if it did not."""
        self._metadata: TableMetadata = table.metadata
        """As last loaded or committed."""
        self._infos = SnapshotInfos(sink_id)
        self._warned = False
        self._retention, self._removals = retention or RetentionOptions(), removals
        self._expiry_note = ""
        self.expiries = 0
        """The number of expiries that this run committed."""
        self._commits = self._expiry_from = 0
        """The number of commits of this run, and the number at which it looks for expired snapshots again."""
        self._manifests = ManifestCache()
        self._key_scans = KeyScans(self._manifests)

    def load(self) -> TableState:
        """Load the table from the catalog. Raises TransientError; TerminalError if the table was dropped.

        A response that says so over HTTP counts only if it is the catalog's own, and the same for some seconds: a proxy
        responds like that while the server is away, and a replica while it is behind. A state that is older than the
        last one counts after these seconds, too, whatever the catalog.
        """
        reached("load")
        known = self._metadata  # before the request: another thread may commit meanwhile
        with loading(f'loading table "{self._name}"'):
            try:
                table = self._catalog.load_table(self._identifier)
            except NoSuchTableError as error:
                raise self._missing(error) from error
        self._missing_since = None
        self._check_age(table.metadata, known)
        self._latest, self._metadata = self._reaching_keys(table), table.metadata
        self._loaded_ms = self._clock.now_ms()
        ref = table.metadata.refs.get(self._branch)
        if ref is not None and ref.snapshot_ref_type != SnapshotRefType.BRANCH:
            raise TerminalError(f'"{self._branch}" is a tag of table "{self._name}"', hint="Choose another branch.")
        head = head_of(table.metadata, self._branch)
        if not self._warned and shows_no_history(table.metadata):
            self._warned = True
            log.warning("table %s shows only its newest snapshot: progress is read from its properties", self._name)
        return TableState(
            uuid=str(table.metadata.table_uuid),
            ancestors=self._infos.of(ancestors_of(table.metadata, head)),
            stated=stated_progress(table.properties, self._sink_id),
            has_data=has_data(head),
            others=other_sinks(table.metadata, self._branch, self._sink_id),
            format_version=table.metadata.format_version,
            handle=table,
        )

    def _missing(self, error: NoSuchTableError) -> CalveError:
        """The error for a table that the catalog does not find: final unless the response may be wrong."""
        now = self._clock.monotonic()
        self._missing_since = now if self._missing_since is None else self._missing_since
        recent = now - self._missing_since < MISSING_SECONDS
        if is_relayed(error) and (recent or not is_told_by_catalog(error)):
            return TransientError(
                f'table "{self._name}" was not found',
                detail=text_of(error),
                hint="The sink asks again. Check the address of the catalog, and whether the table was dropped.",
            )
        return TerminalError(
            f'table "{self._name}" no longer exists',
            detail=str(error),
            hint="Restore it, or start a new sink into a new table.",
        )

    def _check_age(self, metadata: TableMetadata, known: TableMetadata) -> None:
        """Raise TransientError for a state that is older than a known one, unless it is shown for some seconds.

        A read replica or a cache may show it for a moment, somebody may have restored it for good.
        """
        last, before = _last_sequence_number(metadata), _last_sequence_number(known)
        if metadata.table_uuid != known.table_uuid or last >= before:
            self._older_since = None
            return
        now = self._clock.monotonic()
        self._older_since = now if self._older_since is None else self._older_since
        if now - self._older_since < MISSING_SECONDS:
            raise TransientError(
                f'the catalog showed an older state of table "{self._name}"',
                detail=f"Its last sequence number was {last}, after it had been {before}.",
                hint="The sink asks again. Check for read replicas and caches of the catalog.",
            )

    def _reaching_keys(self, table: Table, keys: Sequence[Manifest] = ()) -> Table:
        """Give the table's IO access to the key files, if there are or will be any outside of the table's location.

        Only then: tasks receive these credentials, and otherwise they should have only what the catalog hands out.
        """
        place = self._keys_at
        self._has_apart = self._has_apart or any(self._is_apart(manifest.path) for manifest in keys)
        if place is not None and (self._key_location or self._has_apart):
            table.io.properties = with_place_apart(table.io.properties, place.location, place.io_properties)
        return table

    @property
    def _key_location(self) -> str:
        """Where new key files go; empty if they go beside the data files."""
        place = self._keys_at
        return place.location if place is not None and place.takes_new and self._keeps_keys else ""

    def _is_apart(self, location: str) -> bool:
        return self._keys_at is not None and location.startswith(f"{self._keys_at.location}/")

    def commit(self, state: TableState, proposal: Proposal) -> Progress:
        """Add one snapshot on top of exactly `state`: one attempt.

        Raises CommitConflict if it was certainly not applied, CommitUnknown if the outcome is unknown, TransientError
        if nothing was sent.
        """
        draft = new_draft(state.handle, self._clock, self._ids, self._branch)
        progress = replace(
            proposal.progress,
            table_uuid=state.uuid,
            snapshot_id=draft.snapshot_id,
            sequence_number=draft.sequence_number,
        )
        new = [ManifestLine(manifest_file(m, draft.snapshot_id, draft.sequence_number)) for m in proposal.manifests]
        before = self._lines_of(draft.table, draft.parent)
        removal = NOTHING_REMOVED
        if proposal.replaces:
            with trying(f'replacing the contents of "{self._name}"'):
                removal = remove_all(draft, before, self._manifests)
        elif proposal.replaced_deletes:
            with trying(f'merging deletes of "{self._name}"'):
                removal = remove_deletes(draft, before, frozenset(proposal.replaced_deletes), self._manifests)
            self._check_replaced(removal, proposal)
        summary = new_summary(
            removal.operation(proposal.manifests),
            added_counts(proposal.totals),
            None if proposal.replaces else draft.parent,
            progress.to_summary(),
            removed=removal.counts,
        )
        kept = before if removal is NOTHING_REMOVED else removal.lines
        contents = SnapshotContents((*new, *kept), shared=(*new, *before), summary=summary)
        updates = progress_updates(draft, progress, self._state_location)
        if proposal.retired:
            updates += (retirement_update(proposal.retired),)
        reached("manifest-list.before")
        change = snapshot_change(draft, contents, self._manifests, *updates)
        reached("manifest-list.after")
        what = f'the commit of batch {progress.lower} to {progress.frontier} to "{self._name}"'
        self._metadata = send(change, what, "commit")
        self._expire()
        return progress

    def _check_replaced(self, removal: ManifestRemoval, proposal: Proposal) -> None:
        """Check that all deletes that the new ones contain leave the table: a data file must not have two vectors."""
        found, expected = removal.counts.get("removed-delete-files", 0), len(set(proposal.replaced_deletes))
        if found < expected:  # a foreign writer may have listed one twice
            raise TerminalError(
                f'deletes of table "{self._name}" were looked up in another snapshot than the one to commit on',
                detail=f"{expected} are replaced, {found} of them are in the snapshot.",
            )

    def _expire(self) -> None:
        """Remove expired snapshots, if there are enough of them. A failure is retried after a later commit."""
        policy, self._commits = ExpiryPolicy(self._retention, self._branch, self._clock.now_ms()), self._commits + 1
        if self._commits < self._expiry_from or not may_be_due(self._metadata, policy):
            return
        self._expiry_from = self._commits + len(self._metadata.snapshots) // _LOOK_SHARE
        try:
            reached("expiry.before")
            table = load_whole(self._catalog, TableName(self._identifier[:-1], self._identifier[-1]))
            if table is None or self._may_not_expire(table):
                return
            done = expire(table, policy, self._removals, self._ids)
            if done is not None:
                self._metadata, self.expiries = done[0], self.expiries + 1
            reached("expiry.after")
        except TransientError as error:  # must not fail the commit, which was applied
            log.info("expiry of snapshots of %s will be retried: %s", self._name, error)

    def _may_not_expire(self, table: Table) -> bool:
        """Whether the table refuses expiry. Logs that, and a retention that is too short, once."""
        refusal = refusal_of(table)
        note = f"snapshots are kept: {refusal}" if refusal else retention_warning(table, self._branch, self._retention)
        if note and note != self._expiry_note:
            log.warning("table %s: %s", self._name, note)
        self._expiry_note = note
        return bool(refusal)

    @property
    def behind(self) -> bool:
        """Whether the table must be changed before it can take rows. Raises InvalidInput if no change helps."""
        metadata = self._latest.metadata
        return bool(self._lacks(metadata)) or self._needs_upgrade(metadata)

    def _needs_upgrade(self, metadata: TableMetadata) -> bool:
        wanted = self._shape.format_version if self._shape else None
        if wanted is None or metadata.format_version >= wanted:
            return False
        check_upgradable(metadata, self._name)
        return True

    def _lacks(self, metadata: TableMetadata) -> tuple[TableUpdate, ...]:
        return evolution(metadata, self._shape, self._sink_id) if self._shape else ()

    def evolve(self, state: TableState) -> None:
        """Change the table's schema and partitions, or then its format version, on exactly `state`.

        Call it until the table is no longer `behind`. Raises like `commit`.
        """
        table: Table = state.handle
        updates = self._lacks(table.metadata)
        if updates:
            needed = requirements(table.metadata, self._branch)
            change = TableChange(table, needed, updates, done=lambda now: not self._lacks(now.metadata))
            send(change, f'a change of the schema of "{self._name}"', "schema")
            log.info("the schema of table %s was changed", self._name)
        elif self._needs_upgrade(table.metadata):
            self._upgrade(table)
        self.load()

    def _upgrade(self, table: Table) -> None:
        """Raise the format version, and give all rows ids, in one commit. No manifest is written again for it."""
        draft = new_draft(table, self._clock, self._ids, self._branch, upgrades=True)
        lines = self._lines_of(table, draft.parent)
        summary = new_summary(Operation.REPLACE, {}, draft.parent, {})
        change = snapshot_change(draft, SnapshotContents(lines, shared=lines, summary=summary), self._manifests)
        self._metadata = send(change, f'the upgrade of "{self._name}" to format version 3', "upgrade")
        log.info("table %s was upgraded to format version 3", self._name)

    def merge_manifests(self, state: TableState) -> bool:
        """Rewrite many small manifests into few, in a `replace` snapshot on top of `state`; False if not needed.

        Rows, sequence numbers, the sink's progress and its tag do not change. Raises like `commit`.
        """
        table: Table = state.handle
        lines = self._lines_of(table, head_of(table.metadata, self._branch))
        groups = merge_groups(line.manifest for line in lines)
        if not groups:
            return False
        draft = new_draft(table, self._clock, self._ids, self._branch)
        with unsent_files(table) as made, trying(f'merging manifests of "{self._name}"'):
            merged = [self._merge(draft, group, number, made) for number, group in enumerate(groups)]
        replaced = {manifest.manifest_path for group in groups for manifest in group.members}
        kept = [line for line in lines if line.manifest.manifest_path not in replaced]
        counts = {
            "manifests-created": str(len(merged)),
            "manifests-replaced": str(len(replaced)),
            "manifests-kept": str(len(kept)),
            "entries-processed": str(sum(line.manifest.existing_files_count or 0 for line in merged)),
        }
        summary = new_summary(Operation.REPLACE, {}, draft.parent, counts)
        contents = SnapshotContents((*merged, *kept), shared=kept, summary=summary)
        change = snapshot_change(draft, contents, self._manifests)
        self._metadata = send(change, f'the merge of manifests of "{self._name}"', "maintain")
        return True

    def standing(self) -> TableSummary:
        """Location, columns and size as last seen, without a request."""
        return standing_of(self._metadata)

    def health(self, options: WriteOptions) -> TableHealth:
        """Count the files of the table as last loaded or committed. Raises TransientError."""
        metadata, io = self._metadata, self._latest.io
        size = file_options(options, metadata.properties).target_file_size
        with trying(f'reading the manifests of "{self._name}"'):
            return table_health(
                metadata,
                metadata.snapshot_by_name(self._branch),
                io,
                self._manifests,
                target_size=size,
                now_ms=self._clock.now_ms(),
            )

    def write_target(self, options: WriteOptions, staged: Sequence[RowKind] = ()) -> WriteTarget:
        """Where and how to write files, by the last loaded state; reloads it if its credentials expire soon.

        With `staged`, the files hold staged rows: the columns that any of these kinds has, and the key of the last.
        Raises TransientError.
        """
        if expires_soon(self._latest.io.properties, self._loaded_ms, self._clock.now_ms()):
            self.load()
        table = self._reaching_keys(self._latest)
        delete_spec_id = unpartitioned_spec_id(table)
        if delete_spec_id is None:
            raise InvalidInput(f'table "{self._name}" has no unpartitioned spec for deletes')
        with trying(f'asking for credentials of "{self._name}"'):
            settings = task_properties_of(table.io.properties)
        key_ids = _key_ids(staged[-1]) if staged else self._key_ids
        written = self._written_schema(table, staged)
        of_files = with_defaults(table.schema(), written)
        return WriteTarget(
            schema_json=written.model_dump_json(),
            key_ids=key_ids,
            data_location=locations_of(table).data_path,
            key_location=self._key_location,
            data_spec_id=table.metadata.default_spec_id,
            delete_spec_id=delete_spec_id,
            data_spec_json="" if table.spec().is_unpartitioned() else table.spec().model_dump_json(),
            table_properties={k: v for k, v in table.properties.items() if k.startswith("write.")},
            io_properties=settings,
            options=file_options(options, table.properties, [table.schema().find_field(i).name for i in key_ids]),
            mark=table_mark(table.metadata.table_uuid),
            file_schema_json="" if of_files is written else of_files.model_dump_json(),
        )

    def write_targets(
        self, state: TableState, options: WriteOptions, spec_ids: Iterable[int]
    ) -> dict[int, WriteTarget]:
        """Where to write files, by partition spec, that are about to be added to `state`.

        Raises TransientError; InvalidInput for a column that no file can contain.
        """
        table: Table = state.handle
        with trying(f'asking for credentials of "{self._name}"'):
            settings = task_properties_of(table.io.properties)
        schema = schema_with(table.schema())
        return {n: rewriting_target(table, schema, n, options, settings, self._key_ids) for n in spec_ids}

    def _written_schema(self, table: Table, staged: Sequence[RowKind]) -> Schema:
        given = self._shape.given if self._shape else None
        if staged:
            theirs = table.schema() if given is None else as_known(table.metadata, given)
            return columns_of_any(theirs, [parse_schema(kind.columns) for kind in staged])
        return self._first_schema if given is None else written_schema(as_known(table.metadata, given), given)

    @property
    def needs(self) -> ColumnNeeds:
        """What the table, as last loaded, requires of the input's columns beyond what the input guarantees."""
        return needs_of(self._latest.metadata, self._shape.given) if self._shape else NO_NEEDS

    def columns_named(self, given: Schema) -> str:
        """The table's columns that have the names of `given`, as JSON for `RowKind`."""
        metadata = self._latest.metadata
        return written_schema(as_known(metadata, given), given).model_dump_json()

    def write_manifests(self, files: Sequence[WrittenFile], commit_id: str) -> tuple[Manifest, ...]:
        """Write the manifests of one batch's files; every commit attempt can use them. Raises TransientError."""
        with trying(f'writing manifests of "{self._name}"'):
            folder = self._keys_at.location if self._keys_at and self._is_apart(files[0].path) else ""
            table = self._reaching_keys(self._latest)
            return write_manifests(table, files, f"{commit_id}-{self._ids.new_id()[:8]}", folder=folder)

    def plan_keys(
        self, state: TableState, keys: Sequence[Manifest], added: Sequence[Manifest] = (), *, ordered: bool = False
    ) -> KeyScan:
        """Plan how to find rows with these keys in exactly `state`. The rows of `added` replace them.

        `ordered`: only if they are newer. Raises TransientError.
        """
        table: Table = self._reaching_keys(state.handle, keys)
        lines = self._lines_of(table, head_of(table.metadata, self._branch))
        with trying(f'planning a lookup of keys in "{self._name}"'):
            return self._key_scans.plan(table, [line.manifest for line in lines], keys, added, ordered=ordered)

    def plan_all_keys(self, state: TableState, key_ids: tuple[int, ...]) -> KeyScan:
        """Plan how to find rows in `state` by keys of these fields, whatever the keys are. Raises TransientError."""
        table: Table = state.handle
        lines = self._lines_of(table, head_of(table.metadata, self._branch))
        with trying(f'planning a lookup of keys in "{self._name}"'):
            return self._key_scans.plan_all(table, [line.manifest for line in lines], key_ids)

    def scan_keys(self, state: TableState, snapshot_id: int) -> Scan:
        """A scan of the key columns of a snapshot, ready to be planned."""
        table: Table = state.handle
        names = [table.schema().find_field(number).name for number in self._key_ids]
        return Scan.of(table, AsOf(snapshot_id=snapshot_id), names or None)

    def remove_keys(self, keys: Sequence[Manifest]) -> None:
        """Remove key files and their manifests; files that are already gone are ignored. Raises TransientError.

        If the store refuses to delete, it is not asked again: new key files go to the state location.
        """
        removable = [manifest for manifest in keys if not self._keeps_keys or self._is_apart(manifest.path)]
        io = self._reaching_keys(self._latest, keys).io
        with trying(f'removing keys of "{self._name}"'):
            try:
                self._remove_keys(io, removable)
            except OSError as error:
                if not is_refused(error):
                    raise
                self._keeps_keys = True
                text = "the store of %s refuses to delete key files: they remain, new ones go to the state location"
                log.warning(text, self._name, extra={"error": str(error)})

    def _remove_keys(self, io: FileIO, keys: Sequence[Manifest]) -> None:
        for manifest in keys:
            with suppress(FileNotFoundError):
                for location in self._manifests.files_of(io, manifest):
                    remove(io, location)
                remove(io, manifest.path)

    def discard_deletes(self, deletes: Sequence[Manifest], why: str) -> None:
        """Remove delete files that no snapshot refers to, and their manifests. A failure leaves them as orphans."""
        io = self._latest.io
        for manifest in deletes:
            try:
                files = self._manifests.files_of(io, manifest)
            except OSError as error:
                log.warning("deletes of a failed attempt remain as orphans", extra={"error": str(error)})
            else:
                discard(io, [*files, manifest.path], why)

    def discard_files(self, locations: Sequence[str], why: str) -> None:
        """Remove files that no snapshot refers to. They stay as orphans if that fails, or if the store keeps all."""
        if not self._keeps_keys:
            discard(self._latest.io, locations, why)

    def missing_files(self, manifests: Sequence[Manifest]) -> tuple[str, ...]:
        """Which of these manifests, and of the files they list, no longer exist. Raises TransientError."""
        table = self._reaching_keys(self._latest, manifests)
        settings = io_properties_of(table.io.properties)
        with trying(f'looking for files of "{self._name}"'):
            gone = absent([manifest.path for manifest in manifests], settings)
            named = [
                self._manifests.files_of(table.io, manifest) for manifest in manifests if manifest.path not in gone
            ]
            return gone + absent([file for files in named for file in files], settings)

    def _lines_of(self, table: Table, snapshot: Snapshot | None) -> tuple[ManifestLine, ...]:
        with trying(f'reading the manifest list of "{self._name}"'):
            return self._manifests.lines_of(table.io, snapshot)

    def _merge(self, draft: Draft, group: MergeGroup, number: int, made: list[str]) -> ManifestLine:
        name = f"{draft.snapshot_id}-{draft.sequence_number}-merged{number}.avro"
        place = manifest_place(draft.table, group.spec_id, group.content, name)
        made.append(place.location)
        entries = self._manifests.entries_of(draft.table.io, *group.members)
        return ManifestLine(write_existing(place, entries, draft.snapshot_id, draft.sequence_number))


def _last_sequence_number(metadata: TableMetadata) -> int:
    return 0 if isinstance(metadata, TableMetadataV1) else metadata.last_sequence_number  # version 1 counts nothing


def _key_ids(kind: RowKind) -> tuple[int, ...]:
    fields = parse_schema(kind.columns).fields
    return tuple(field_named(fields, name).field_id for name in kind.key)
