"""CREATE SINK -> a checked `SinkPlan`: everything that a run needs; only secrets are resolved later.

Row times, partition fields, keys and types are checked against the known columns before anything runs. Columns of a
view, and fields of structs, are checked once Spark knows their types (`iceberg/schema/creation.py`).
"""

from dataclasses import replace
from datetime import timedelta
from enum import StrEnum

from calve.definitions.objects import RELATIONS, Definition
from calve.definitions.store import Definitions
from calve.errors import InvalidInput
from calve.model.connection import AwsConnection, CatalogConnection
from calve.model.readers import Reader, parse_readers
from calve.model.relation import KnownColumn, Relation, SourcePlan, TableInput
from calve.model.spec import (
    HEARTBEAT_MS,
    LATEST_FORMAT,
    CompactionOptions,
    DayHours,
    Debezium,
    Deletes,
    Diff,
    Envelope,
    LateRows,
    NoEnvelope,
    OnForeignCommit,
    Pace,
    PartitionBy,
    RetentionOptions,
    RowOrder,
    RowTimes,
    SinkSpec,
    TableName,
    ThinSnapshots,
    WriteOptions,
    format_for,
)
from calve.model.types import TYPES, ColumnType, declared_type, leaves
from calve.plan.catalogue import SINK, SinkOptions
from calve.plan.connections import plan_aws_connection, plan_connection
from calve.plan.lookup import required, required_connection
from calve.plan.settings import CheckedOptions, Setting
from calve.plan.sources import column_named, plan_source
from calve.sql.errors import SqlError
from calve.sql.names import Identifier
from calve.sql.parts import PartitionField, SinkMode, Transform
from calve.sql.statements import ConnectionKind, CreateConnection, CreateSink, CreateSource, CreateView, ObjectKind
from calve.sql.values import format_duration
from calve.values import value

_OF_TIMES = (SinkOptions.WATERMARK_DELAY, SinkOptions.IDLE_TIMEOUT, SinkOptions.LATE_ROWS)


def plan_times(given: CheckedOptions, source: SourcePlan, *, append: bool) -> RowTimes | None:
    """The times of rows; None if rows have the time of their checkpoint. Raises SqlError."""
    envelope, column = source.envelope, given.get(SinkOptions.TIME_COLUMN)
    if isinstance(envelope, Diff):
        if column:
            raise given.error(SinkOptions.TIME_COLUMN, "ENVELOPE DIFF already names the time", "Leave it out.")
        if envelope.progress and SinkOptions.WATERMARK_DELAY in given:
            raise given.error(
                SinkOptions.WATERMARK_DELAY, "progress rows already state which times are complete", "Leave it out."
            )
    elif column is None:
        for option in _OF_TIMES:
            if option in given:
                raise given.error(
                    option, f"{option.name} is only for rows that have times of their own", "Add TIME COLUMN = ..."
                )
        return None
    known = next((c.name for c in source.relation.columns or () if column and column.matches(c.name)), None)
    idle = given.get(SinkOptions.IDLE_TIMEOUT)
    return RowTimes(
        late=given.get(SinkOptions.LATE_ROWS, LateRows.ADVANCE if append else LateRows.ERROR),
        field=known or (column.name if column else None),
        by_progress=isinstance(envelope, Diff) and envelope.progress is not None,
        delay_ms=_millis(given.get(SinkOptions.WATERMARK_DELAY, timedelta(0))),
        idle_ms=None if idle is None else _millis(idle),
    )


def _retention(given: CheckedOptions) -> RetentionOptions:
    age = given.get(SinkOptions.SNAPSHOT_RETENTION)
    grace = given.get(SinkOptions.REMOVAL_GRACE)
    return RetentionOptions(
        None if age is None else _millis(age),
        given.get(SinkOptions.MIN_SNAPSHOTS),
        given.get(SinkOptions.THIN_SNAPSHOTS, ThinSnapshots.HOURLY) is ThinSnapshots.HOURLY,
        RetentionOptions.grace_ms if grace is None else _millis(grace),
    )


def _compaction(given: CheckedOptions, relation: Relation, *, append: bool) -> CompactionOptions:
    reads, share = given.get(SinkOptions.EXPECTED_READS), given.get(SinkOptions.DELETED_SHARE)
    cores, hours = given.get(SinkOptions.MAINTENANCE_CORES), given.get(SinkOptions.MAINTENANCE_HOURS)
    try:
        day = None if hours is None else DayHours.parse(hours)
    except InvalidInput as error:
        raise given.error(SinkOptions.MAINTENANCE_HOURS, error.primary, error.hint) from error
    order = row_order(given, SinkOptions.SORT_BY)
    if relation.columns is not None and not append:  # MODE APPEND adds columns
        for name in order.columns:
            column_named(relation.columns, Identifier.shortest(name), "column")
    return CompactionOptions(
        None if reads is None else float(reads),
        None if share is None else float(share),
        given.get(SinkOptions.SMALL_FILES),
        day,
        CompactionOptions.core_share if cores is None else float(cores),
        order,
    )


def row_order(given: CheckedOptions, option: Setting[str]) -> RowOrder:
    """The order of rows that an option states. Raises SqlError."""
    text = given.get(option)
    try:
        return RowOrder() if text is None else RowOrder.parse(text)
    except InvalidInput as error:
        raise given.error(option, error.primary, error.hint) from error


def _millis(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


_UNITS = (Transform.YEAR, Transform.MONTH, Transform.DAY, Transform.HOUR)


def plan_partitions(fields: tuple[PartitionField, ...], relation: Relation) -> tuple[PartitionBy, ...]:
    """Resolve partition fields to the names of their columns. Raises SqlError."""
    planned: list[PartitionBy] = []
    for field in fields:
        wanted = _field(field, relation)
        for other in planned:
            _check_pair(field, other, wanted)
        planned.append(wanted)
    return tuple(planned)


def _field(field: PartitionField, relation: Relation) -> PartitionBy:
    first, *rest = field.column.parts
    if relation.columns is None:
        return PartitionBy(field.transform.value, (first.name, *(part.name for part in rest)), field.width)
    column = column_named(relation.columns, first, "column")
    known = declared_type(column.type)
    if rest and (known is None or known.sql != "STRUCT"):
        raise SqlError.at(field.column.where, f'column "{column.name}" of type {column.type} has no fields')
    if not rest and known is not None:
        _check_type(field, column, known)
    return PartitionBy(field.transform.value, (column.name, *(part.name for part in rest)), field.width)


def _check_type(field: PartitionField, column: KnownColumn, known: ColumnType) -> None:
    if field.transform.value in known.transforms:
        return
    allowed = [kind.sql for kind in TYPES if field.transform.value in kind.transforms]
    raise SqlError.at(
        field.column.where,
        f'{field.to_sql()} does not support column "{column.name}" of type {column.type}',
        hint="Partition by a field of it, or by another column."
        if known.nested
        else f"{field.transform.value} takes {', '.join(allowed)}.",
    )


def _check_pair(field: PartitionField, other: PartitionBy, wanted: PartitionBy) -> None:
    if other == wanted:
        raise SqlError.at(field.column.where, f"duplicate partition field {wanted}", hint="Leave one of them out.")
    both_units = wanted.transform in _UNITS and other.transform in _UNITS
    if both_units and other.column == wanted.column:
        finer = max(other, wanted, key=lambda by: _UNITS.index(Transform(by.transform)))
        raise SqlError.at(
            field.column.where,
            f"partition fields {other} and {wanted} are redundant",
            hint=f"Keep only {finer}: it implies the other.",
        )


class OnOldProgress(StrEnum):
    """What to do with a table that has the progress of a dropped sink."""

    REFUSE = "refuse"
    RESUME = "resume"
    SNAPSHOT = "snapshot"


@value
class ViewText:
    """A view between source and sink; the query is in Spark's language."""

    name: str
    query: str


@value
class SinkPlan:
    """A checked sink. The key in `spec` is empty if the view determines it, or the table that the source reads."""

    spec: SinkSpec
    source: SourcePlan
    views: tuple[ViewText, ...]
    """From the source upwards; the sink reads the last one, or the source itself if there are none."""
    catalog: CatalogConnection
    store: AwsConnection | None
    every: timedelta | None
    """Time between checkpoints of a source that is read to its end; None: as data arrives."""
    commit_every: timedelta | None
    state: str | None
    beginning: OnOldProgress


def plan_sink(definition: Definition, definitions: Definitions) -> SinkPlan:
    """Plan the sink of a definition, stored or about to be stored. Raises InvalidInput."""
    statement = definition.statement
    if not isinstance(statement, CreateSink):
        raise TypeError("not a sink")
    given = SINK.check(statement.options, statement.where)
    source, views = resolve_source(statement, definitions)
    relation = Relation(views[-1].name, None, ()) if views else source.relation
    if views and isinstance(source.envelope, Diff):
        raise SqlError.at(statement.where, "views over ENVELOPE DIFF are not supported")
    if views and getattr(source.envelope, "across_checkpoints", False):
        raise SqlError.at(
            statement.where, "ORDER BY ... GLOBAL is not supported for views", hint="Leave GLOBAL out at the source."
        )
    append = statement.mode is SinkMode.APPEND
    times = plan_times(given, source, append=append)
    commit_every = given.get(SinkOptions.COMMIT_INTERVAL)
    every = _checkpoint_interval(given, commit_every)
    replay = given.get(SinkOptions.RECOVERY) == "replay"
    staged = (commit_every is not None and not replay) or times is not None or SinkOptions.COMMIT_SIZE in given
    _check_staged(given, staged=staged)
    given.exclude(SinkOptions.RESUME, SinkOptions.SNAPSHOT, SinkOptions.ADOPT)
    given.exclude(SinkOptions.SNAPSHOT, SinkOptions.ADOPT)
    readers = _readers(given, append=append)
    version = given.get(SinkOptions.FORMAT_VERSION)
    vectors = given.get(SinkOptions.DELETES) is Deletes.VECTOR
    if vectors and version != LATEST_FORMAT and (version is not None or not readers):
        raise given.error(
            SinkOptions.DELETES,
            "deletion vectors need format version 3",
            "Add FORMAT VERSION = 3, or use DELETES = 'position'.",
        )
    heartbeat = given.get(SinkOptions.HEARTBEAT)
    spec = SinkSpec(
        name=definition.name,
        sink_id=definition.uid,
        table=TableName(statement.target.namespace, statement.target.table),
        key=()
        if append
        else _key(statement, relation, found_later=bool(views) or isinstance(source.input, TableInput)),
        envelope=_with_policies(source.envelope, given),
        version=definition.version,
        on_foreign_commit=given.get(SinkOptions.ON_FOREIGN_COMMIT, SinkSpec.on_foreign_commit),
        write=_write_options(given),
        window_ms=commit_every // timedelta(milliseconds=1) if commit_every and staged else None,
        generation=definition.standing.generation,
        accepted_snapshot=definition.standing.accepted_snapshot,
        deletes=given.get(SinkOptions.DELETES, SinkSpec.deletes),
        format_version=version,
        readers=readers,
        key_index=given.get(SinkOptions.KEY_INDEX, SinkSpec.key_index),
        maintenance=given.get(SinkOptions.MAINTENANCE, SinkSpec.maintenance),
        partition_by=plan_partitions(statement.partition_by, relation),
        on_schema_change=given.get(SinkOptions.ON_SCHEMA_CHANGE, SinkSpec.on_schema_change),
        on_key_violation=given.get(SinkOptions.ON_KEY_VIOLATION, SinkSpec.on_key_violation),
        branch=given.get(SinkOptions.BRANCH, SinkSpec.branch),
        unpartitioned=definition.standing.unpartitioned,
        uuids=tuple(c.name for c in relation.columns or () if c.type == "UUID"),
        append=append,
        times=times,
        commit_bytes=given.get(SinkOptions.COMMIT_SIZE),
        coalesce=given.get(SinkOptions.COALESCE, SinkSpec.coalesce),
        heartbeat_ms=HEARTBEAT_MS if heartbeat is None else heartbeat // timedelta(milliseconds=1),
        dead_letters=_dead_letters(given, statement),
        pace=Pace.of(_seconds(commit_every), _seconds(every), replay=replay),
        max_pending_batches=given.get(SinkOptions.MAX_PENDING_BATCHES, SinkSpec.max_pending_batches),
        max_staged_size=given.get(SinkOptions.MAX_STAGED_SIZE),
        adopt=given.get(SinkOptions.ADOPT, SinkSpec.adopt),
        retention=_retention(given),
        compaction=_compaction(given, relation, append=append),
    )
    if append and statement.key:
        raise SqlError.at(statement.key[0].where, "MODE APPEND does not take a key", hint="Leave it out.")
    _check_types(relation)
    catalog, store = plan_target(statement, definitions)
    _check_only_writer(definition, statement, spec, definitions)
    return SinkPlan(
        spec,
        source,
        views,
        catalog,
        store,
        commit_every if replay else every,
        commit_every,
        given.get(SinkOptions.STATE_LOCATION),
        _beginning(given),
    )


def uses_of_sink(statement: CreateSink, definitions: Definitions) -> tuple[str, ...]:
    """Uids of the objects that a sink refers to."""
    found = [
        required(definitions, statement.source, ObjectKind.SOURCE, ObjectKind.VIEW),
        required_connection(definitions, statement.target.catalog, ConnectionKind.ICEBERG_CATALOG),
    ]
    if statement.target.aws:
        found.append(required_connection(definitions, statement.target.aws, ConnectionKind.AWS))
    return tuple(d.uid for d in found)


def resolve_source(statement: CreateSink, definitions: Definitions) -> tuple[SourcePlan, tuple[ViewText, ...]]:
    """The source at the bottom, and the views above it."""
    return resolve_relation(required(definitions, statement.source, ObjectKind.SOURCE, ObjectKind.VIEW), definitions)


def resolve_relation(top: Definition, definitions: Definitions) -> tuple[SourcePlan, tuple[ViewText, ...]]:
    """The source at the bottom of a source or view, and the views above it, the lowest first."""
    views: list[ViewText] = []
    here = top
    while isinstance(here.statement, CreateView):
        views.insert(0, ViewText(here.name, here.statement.query))
        inputs = [d for uid in here.uses if (d := definitions.by_uid(uid)) and d.kind in RELATIONS]
        if not inputs:
            raise InvalidInput(f'view "{here.name}" does not read a source')
        here = inputs[0]
    if not isinstance(here.statement, CreateSource):
        raise TypeError("neither a view nor a source")
    return plan_source(here.statement, definitions), tuple(views)


def plan_target(statement: CreateSink, definitions: Definitions) -> tuple[CatalogConnection, AwsConnection | None]:
    """The catalog of a sink's table, and the credentials of its store if they differ from the catalog's."""
    target = statement.target
    found = required_connection(definitions, target.catalog, ConnectionKind.ICEBERG_CATALOG)
    planned = plan_connection(found.statement, definitions) if isinstance(found.statement, CreateConnection) else None
    if not isinstance(planned, CatalogConnection):
        raise TypeError("not a connection to a catalog")
    if target.aws is None:
        return planned, None
    aws = required_connection(definitions, target.aws, ConnectionKind.AWS)
    store = plan_aws_connection(aws.statement, definitions) if isinstance(aws.statement, CreateConnection) else None
    return planned, store


def _checkpoint_interval(given: CheckedOptions, commit_every: timedelta | None) -> timedelta | None:
    every = given.get(SinkOptions.CHECKPOINT_INTERVAL)
    if every is not None and commit_every is not None and commit_every % every:
        raise given.error(
            SinkOptions.COMMIT_INTERVAL,
            f"the commit interval {format_duration(commit_every)} is not a multiple of the checkpoint interval "
            f"{format_duration(every)}",
            "Choose a commit interval that is a whole number of checkpoint intervals.",
        )
    return every


def _seconds(duration: timedelta | None) -> float:
    return 0.0 if duration is None else duration.total_seconds()


def _check_staged(given: CheckedOptions, *, staged: bool) -> None:
    if SinkOptions.COMMIT_SIZE in given and SinkOptions.COMMIT_INTERVAL not in given:
        raise given.error(
            SinkOptions.COMMIT_SIZE, "COMMIT SIZE needs a COMMIT INTERVAL", "It limits how long a smaller amount waits."
        )
    if SinkOptions.MAX_STAGED_SIZE in given and not staged:
        way_out = "RECOVERY = 'replay'" if given.get(SinkOptions.RECOVERY) == "replay" else "add a COMMIT INTERVAL"
        raise given.error(
            SinkOptions.MAX_STAGED_SIZE, "this sink does not stage anything", f"Leave it out, or {way_out}."
        )
    if staged and given.get(SinkOptions.RECOVERY) == "replay":
        raise given.error(
            SinkOptions.RECOVERY,
            "RECOVERY = 'replay' stages nothing",
            "Leave out COMMIT SIZE and times of rows, or RECOVERY.",
        )


def _key(statement: CreateSink, relation: Relation, *, found_later: bool) -> tuple[str, ...]:
    if not statement.key:
        if relation.key:
            _check_key_types(relation, relation.key)
        elif not found_later:
            raise SqlError.at(
                statement.where,
                f'sink "{statement.name}" has no key',
                hint="Write KEY (column), or give the source a PRIMARY KEY (column) NOT ENFORCED.",
            )
        return relation.key
    if relation.columns is None:
        return tuple(name.name for name in statement.key)
    names = tuple(column_named(relation.columns, name, "key column").name for name in statement.key)
    if len(set(names)) < len(names):
        raise SqlError.at(statement.key[0].where, "the key contains a column twice", hint="Name each column once.")
    _check_key_types(relation, names)
    return names


def _check_key_types(relation: Relation, key: tuple[str, ...]) -> None:
    columns: dict[str, KnownColumn] = {c.name: c for c in relation.columns or ()}
    for name in key:
        kind = columns[name].type if name in columns else ""
        if (known := declared_type(kind)) is not None and not known.key:
            raise InvalidInput(
                f'column "{name}" cannot be part of a key',
                detail=f"It has type {kind}.",
                hint="Use columns with exact, comparable values: numbers, texts, dates, times.",
            )


def _check_types(relation: Relation) -> None:
    """Refuse types that a table cannot hold; columns that only the data reveals are checked when the sink starts."""
    for column in relation.columns or ():
        for path, kind in leaves(column.type, column.name):
            known = declared_type(kind)
            if known is None or not known.iceberg or (known.sql == "VARIANT" and kind != column.type):
                raise InvalidInput(
                    f'column "{path}" has a type that a table cannot hold',
                    detail=f"Got {kind}.",
                    hint="Cast it to STRING in a view, or leave it out.",
                )


def _with_policies(envelope: Envelope | None, given: CheckedOptions) -> Envelope:
    if not isinstance(envelope, Debezium):
        for option in (SinkOptions.ON_TRUNCATE, SinkOptions.ON_UNAVAILABLE_VALUE):
            if option in given:
                raise given.error(option, f"{option.name} is only for sources with ENVELOPE DEBEZIUM", "Leave it out.")
        return envelope or NoEnvelope()
    return replace(
        envelope,
        on_truncate=given.get(SinkOptions.ON_TRUNCATE, Debezium.on_truncate),
        on_unavailable_value=given.get(SinkOptions.ON_UNAVAILABLE_VALUE, Debezium.on_unavailable_value),
    )


def _readers(given: CheckedOptions, *, append: bool) -> tuple[Reader, ...]:
    """The readers of the table, which can all read it. Raises SqlError at the place of the option."""
    text = given.get(SinkOptions.READERS)
    try:
        readers = () if text is None else parse_readers(text)
        deletes = given.get(SinkOptions.DELETES, SinkSpec.deletes)
        format_for(readers, deletes, given.get(SinkOptions.FORMAT_VERSION), append=append)
    except InvalidInput as error:
        hint = f"{error.detail} {error.hint}".strip()
        raise given.error(SinkOptions.READERS, f"READERS: {error.primary}", hint) from error
    return readers


def _dead_letters(given: CheckedOptions, statement: CreateSink) -> TableName | None:
    name = given.get(SinkOptions.DEAD_LETTER_TABLE)
    if given.get(SinkOptions.ON_BAD_ROW) != "dead letter":
        if name is not None:
            raise given.error(SinkOptions.DEAD_LETTER_TABLE, "DEAD LETTER TABLE needs ON BAD ROW = 'dead letter'")
        return None
    own = TableName(statement.target.namespace, statement.target.table)
    table = own.dead_letters if name is None else TableName.parse(name)
    if table == own:
        raise given.error(SinkOptions.DEAD_LETTER_TABLE, "dead letters cannot go to the sink's own table")
    return table


def _write_options(given: CheckedOptions) -> WriteOptions:
    return WriteOptions(
        target_file_size=given.get(SinkOptions.TARGET_FILE_SIZE),
        row_group_size=given.get(SinkOptions.ROW_GROUP_SIZE),
        compression=given.get(SinkOptions.COMPRESSION),
        bloom_filter=given.get(SinkOptions.BLOOM_FILTER, WriteOptions.bloom_filter),
    )


def _beginning(given: CheckedOptions) -> OnOldProgress:
    if given.get(SinkOptions.RESUME):
        return OnOldProgress.RESUME
    return OnOldProgress.SNAPSHOT if given.get(SinkOptions.SNAPSHOT) else OnOldProgress.REFUSE


def _check_only_writer(definition: Definition, statement: CreateSink, spec: SinkSpec, definitions: Definitions) -> None:
    """Refuse a second sink of one table: they would halt each other. Raises SqlError."""
    if spec.on_foreign_commit is OnForeignCommit.ACCEPT:
        return
    here = required_connection(definitions, statement.target.catalog, ConnectionKind.ICEBERG_CATALOG)
    for other in definitions.of(ObjectKind.SINK):
        theirs = other.statement
        if other.uid == definition.uid or not isinstance(theirs, CreateSink) or here.uid not in other.uses:
            continue
        same_table = (theirs.target.namespace, theirs.target.table) == (
            statement.target.namespace,
            statement.target.table,
        )
        if same_table and (theirs.options.value(SinkOptions.BRANCH.name) or SinkSpec.branch) == spec.branch:
            raise SqlError.at(
                statement.where,
                f'sink "{other.name}" already writes to table {spec.table}',
                hint="Choose another table, or drop that sink first: WITH (ADOPT = true) adopts its rows. To share "
                "the table: WITH (ON FOREIGN COMMIT = 'accept') on both sinks, ADOPT = true if it has rows.",
            )
