"""What a change of a definition does to running sinks and their tables.

An effect is dangerous if rows, snapshots or progress may be lost, if rows of the table stay as an older definition made
them, if a sink stops because of it, or if there is no way back. `calve run` applies dangerous changes only if the user
says so.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from calve.definitions.objects import RELATIONS, Definition
from calve.definitions.store import Definitions
from calve.model.changelog import MAX_HOLD_MS
from calve.model.relation import folder_of
from calve.model.spec import LATEST_FORMAT, LateRows, OnSchemaChange, ThinSnapshots
from calve.model.types import decimal_of, leaves
from calve.plan import catalogue
from calve.plan.catalogue import (
    AwsOptions,
    CatalogOptions,
    FilesOptions,
    GeneratorOptions,
    KafkaOptions,
    KafkaSourceOptions,
    SinkOptions,
    TableSourceOptions,
)
from calve.plan.declared import ColumnChange, column_changes
from calve.plan.settings import AnySetting, CheckedOptions
from calve.sql import parts
from calve.sql import statements as st
from calve.sql.options import SecretName


@dataclass(frozen=True)
class Effect:
    """One consequence, as a sentence without its period."""

    text: str
    dangerous: bool = False


_WIDER: Final = {
    *(("TINYINT", "SMALLINT"), ("TINYINT", "INT"), ("TINYINT", "BIGINT"), ("SMALLINT", "INT"), ("SMALLINT", "BIGINT")),
    *(("INT", "BIGINT"), ("FLOAT", "DOUBLE")),
}

_ELSEWHERE: Final = {
    CatalogOptions.TYPE.name,
    CatalogOptions.URI.name,
    CatalogOptions.WAREHOUSE.name,
    CatalogOptions.CATALOG_NAME.name,
    AwsOptions.ENDPOINT.name,
}
"""Options of connections that may lead to other tables."""
_BROKERS: Final = {KafkaOptions.BROKER.name, KafkaOptions.BROKERS.name}
_READING: Final = {
    FilesOptions.FORMAT.name,
    FilesOptions.EPOCH_UNIT.name,
    FilesOptions.HEADER.name,
    FilesOptions.DELIMITER.name,
    FilesOptions.NULL_VALUE.name,
}
"""Options of inputs that say what a record means."""
_OTHER_ROWS: Final = {
    GeneratorOptions.ROWS.name,
    GeneratorOptions.SEED.name,
    GeneratorOptions.UPDATES.name,
}
_STARTS: Final = {
    KafkaSourceOptions.START_OFFSET.name,
    KafkaSourceOptions.START_OFFSETS.name,
    TableSourceOptions.START.name,
}
_MAX_HOLD: Final = timedelta(milliseconds=MAX_HOLD_MS)
_RETENTION: Final[tuple[AnySetting, ...]] = (
    SinkOptions.SNAPSHOT_RETENTION,
    SinkOptions.MIN_SNAPSHOTS,
    SinkOptions.REMOVAL_GRACE,
)


def table_of(sink: st.CreateSink) -> str:
    """The table of a sink, as people write it."""
    return ".".join((*sink.target.namespace, sink.target.table))


def effects_of_alter(
    before: st.Create, after: st.Create, alteration: st.Alter, found: Definition, definitions: Definitions
) -> list[Effect]:
    """What an ALTER of an existing object does; `definitions` are those before it."""
    sinks = _sinks_of(found, definitions)
    effects: list[Effect] = []
    match before, after, alteration:
        case _, _, st.AlterSink(action=st.Pause()):
            return [Effect(f"sink {found.name} stops after the batch in hand, until it is resumed")]
        case _, _, st.AlterSink(action=st.Resume()):
            return [Effect(f"sink {found.name} continues from its progress")]
        case st.CreateConnection(), _, st.AlterConnection(action=action):
            effects += _of_connection(found, action, definitions)
        case st.CreateSource(), st.CreateSource(), st.AlterSource(action=st.SetColumns()):
            effects += _of_columns(before, after, found, definitions)
        case st.CreateSource(), st.CreateSource(), st.AlterSource(action=st.SetOptions() | st.ResetOptions() as action):
            if sinks:
                effects += _of_source_options(before, after, _names(action))
        case st.CreateView(), _, st.AlterView():
            effects += [_stays(sink) for sink in sinks]
        case st.CreateSink(), st.CreateSink(), st.AlterSink(action=sink_action):
            effects += _of_sink(before, after, sink_action)
    return [*effects, *(Effect(f"sink {sink.name} restarts from its progress") for sink in sinks if _runs(sink))]


def effects_of_create(statement: st.Create) -> list[Effect]:
    """What a new object does."""
    if not isinstance(statement, st.CreateSink):
        return []
    table = table_of(statement)
    given = catalogue.SINK.check(statement.options, statement.where)
    if given.get(SinkOptions.RESUME):
        return [Effect(f"table {table} continues where its dropped sink stopped")]
    if given.get(SinkOptions.SNAPSHOT):
        return [Effect(f"all rows of table {table} are replaced by those of the source, in one snapshot")]
    if SinkOptions.ADOPT in given and given.get(SinkOptions.ADOPT) != "false":
        return [Effect(f"table {table} keeps its rows; the source is read from its start")]
    return [Effect(f"table {table} is filled from the start of the source")]


def effects_of_drop(dropped: list[Definition]) -> list[Effect]:
    """What dropping objects does."""
    effects = []
    for one in dropped:
        if isinstance(one.statement, st.CreateSink):
            table = table_of(one.statement)
            effects.append(Effect(f"sink {one.name} stops; table {table} keeps its rows and progress", dangerous=True))
        else:
            effects.append(Effect(f"{one.kind.value.lower()} {one.name} is gone", dangerous=True))
    return effects


def _sinks_of(found: Definition, definitions: Definitions) -> list[Definition]:
    if found.kind is st.ObjectKind.SINK:
        return [found]
    return [d for d in definitions.dependents(found.uid) if d.kind is st.ObjectKind.SINK]


def _runs(sink: Definition) -> bool:
    return not sink.standing.paused


def _names(action: st.OptionsAction) -> set[str]:
    if isinstance(action, st.SetOptions):
        return {option.name for option in action.options}
    return {name.text for name in action.names}


def _stays(sink: Definition) -> Effect:
    statement = sink.statement
    table = table_of(statement) if isinstance(statement, st.CreateSink) else ""
    way = f"ALTER SINK {sink.statement.name.to_sql()} SET FROM {_source(statement)} WITH (SNAPSHOT = true)"
    return Effect(f"rows that table {table} already has are not computed again; {way} does that", dangerous=True)


def _source(statement: st.Create) -> str:
    return statement.source.to_sql() if isinstance(statement, st.CreateSink) else ""


def _of_connection(found: Definition, action: st.OptionsAction, definitions: Definitions) -> Iterator[Effect]:
    names = _names(action)
    if names & _ELSEWHERE:
        for sink in _sinks_of(found, definitions):
            yield from _elsewhere(sink, found, definitions)
    if names & _BROKERS:
        for source in definitions.dependents(found.uid):
            if source.kind is st.ObjectKind.SOURCE:
                text = f"source {source.name} reads its topic from other brokers"
                yield Effect(f"{text}: in another cluster, the positions of its sinks mean nothing", dangerous=True)
    if isinstance(action, st.ResetOptions) and isinstance(found.statement, st.CreateConnection):
        for option in found.statement.options:
            value = option.value
            kept = isinstance(value, SecretName) and definitions.find(value.name, st.ObjectKind.SECRET)
            if option.name in names and kept and kept.owner == found.uid:
                yield Effect(f"the stored value of {option.name} is gone", dangerous=True)


def _elsewhere(sink: Definition, connection: Definition, definitions: Definitions) -> Iterator[Effect]:
    """What it means to a sink that a connection leads to another catalog or store."""
    if not isinstance(sink.statement, st.CreateSink):
        return
    used = [d for uid in sink.uses if (d := definitions.by_uid(uid))]
    over = {d.kind for d in used if connection.uid in dict(definitions.fingerprint(d))}
    if st.ObjectKind.CONNECTION in over:
        table = table_of(sink.statement)
        yield Effect(f"sink {sink.name} looks for table {table} at another place", dangerous=True)
    if over & RELATIONS:
        yield Effect(f"sink {sink.name} reads {sink.statement.source.name} from another place", dangerous=True)


def _of_source_options(before: st.CreateSource, after: st.CreateSource, names: set[str]) -> Iterator[Effect]:
    """What other options of an input do to the sinks that read it."""
    if FilesOptions.PATH.name in names:
        folders = [folder_of(str(one.input.options.value(FilesOptions.PATH.name))) for one in (before, after)]
        other = "which files of the old folder were read means nothing in the new one"
        same = "files of the folder that it matches now are read; rows of other files stay in the table"
        yield Effect(same if folders[0] == folders[1] else other, dangerous=True)
    if KafkaSourceOptions.TOPIC.name in names:
        yield Effect("positions in the old topic mean nothing in the new one", dangerous=True)
    if (changed := ", ".join(sorted(names & _READING))) and not isinstance(before.input, parts.GeneratorClause):
        what = "files" if isinstance(before.input, parts.FilesClause) else "records"
        yield Effect(f"{what} that were not read yet are read with the new {changed}; rows stay", dangerous=True)
    if names & _OTHER_ROWS:
        yield Effect("the generator makes other rows; those in the table stay", dangerous=True)
    if isinstance(before.input, parts.TableClause) and isinstance(after.input, parts.TableClause):
        yield from _of_consumer(before.input, after.input)
    if names & _STARTS:
        yield Effect("it applies to new sinks: those that run continue where they are")


def _of_consumer(before: parts.TableClause, after: parts.TableClause) -> Iterator[Effect]:
    was, now = (catalogue.TABLE_SOURCE.check(one.options, None) for one in (before, after))
    if TableSourceOptions.CONSUMER not in was:
        return
    if TableSourceOptions.CONSUMER not in now:
        yield Effect("nothing keeps snapshots from expiring before they are read", dangerous=True)
    elif now.get(TableSourceOptions.MAX_HOLD, _MAX_HOLD) < was.get(TableSourceOptions.MAX_HOLD, _MAX_HOLD):
        yield Effect("snapshots that were not read yet may expire sooner", dangerous=True)


# -------------------------------------------------------------------------------------------------------------- columns


def _of_columns(
    before: st.CreateSource, after: st.CreateSource, found: Definition, definitions: Definitions
) -> Iterator[Effect]:
    """What new columns of a source do to the tables of its sinks."""
    changes = column_changes(before, after)
    if isinstance(before.input, parts.FilesClause):
        form = before.input.options.value(FilesOptions.FORMAT.name)
        header = before.input.options.value(FilesOptions.HEADER.name)
        if isinstance(form, str) and form.lower() == "csv" and str(header).lower() != "true":
            yield Effect("columns of CSV files are found by their place: files must have the new ones", dangerous=True)
    for sink in _sinks_of(found, definitions):
        statement = sink.statement
        if not isinstance(statement, st.CreateSink):
            continue
        if found.uid not in sink.uses:
            risky = any(change.before is not None and not _fits(change) for change in changes)
            text = f"sink {sink.name} reads it through a view: the columns of the view decide what changes"
            yield Effect(f"{text}, and it halts if it lacks one" if risky else text, dangerous=risky)
            continue
        given = catalogue.SINK.check(statement.options, None)
        evolves = given.get(SinkOptions.ON_SCHEMA_CHANGE, OnSchemaChange.EVOLVE) is OnSchemaChange.EVOLVE
        key = {name.name.lower() for name in statement.key or before.primary_key}
        for change in changes:
            yield from _of_column(change, table_of(statement), sink.name, evolves=evolves, key=key)


def _of_column(change: ColumnChange, table: str, sink: str, *, evolves: bool, key: set[str]) -> Iterator[Effect]:
    before, after = _leaves(change.before), _leaves(change.after)
    added = [path for path in after if path not in before]
    dropped = [path for path in before if path not in after]
    changed = [path for path in after if path in before and before[path] != after[path]]
    halts = f"sink {sink} halts, since it has ON SCHEMA CHANGE = 'halt'"
    for path in added:
        if not evolves:
            yield Effect(f"table {table} lacks column {path}: {halts}", dangerous=True)
        else:
            yield Effect(f"table {table} gets column {path}; it is null in older rows")
    for path in dropped:
        yield Effect(f"table {table} keeps column {path}; it is null in rows written from now on", dangerous=True)
    for path in changed:
        text = f"column {path} of table {table}"
        if change.name.lower() in key or not _is_wider(before[path], after[path]):
            yield Effect(
                f"{text} cannot change from {before[path]} to {after[path]}: sink {sink} halts", dangerous=True
            )
        elif not evolves:
            yield Effect(f"{text} is narrower: {halts}", dangerous=True)
        else:
            yield Effect(f"{text} is widened from {before[path]} to {after[path]}")
    if change.before and change.after and change.before.not_null != change.after.not_null:
        what = "stays optional" if change.after.not_null else "stays required"
        yield Effect(f"column {change.name} of table {table} {what}; a null is a bad row")


def _fits(change: ColumnChange) -> bool:
    """Whether everything that reads the former column can read the new one."""
    before, after = _leaves(change.before), _leaves(change.after)
    return all(path in after and (kind == after[path] or _is_wider(kind, after[path])) for path, kind in before.items())


def _leaves(column: parts.ColumnClause | None) -> dict[str, str]:
    return dict(leaves(column.type, column.name.name)) if column else {}


def _is_wider(before: str, after: str) -> bool:
    """Whether Iceberg allows to widen one type to the other."""
    if (before, after) in _WIDER:
        return True
    was, now = decimal_of(before), decimal_of(after)
    return was is not None and now is not None and was[1] == now[1] and now[0] >= was[0]


# ---------------------------------------------------------------------------------------------------------------- sinks


def _of_sink(before: st.CreateSink, after: st.CreateSink, action: st.SinkAction) -> Iterator[Effect]:
    table = table_of(before)
    match action:
        case st.SetPartitioning(fields):
            spec = "a new partition spec" if fields else "an unpartitioned spec"
            yield Effect(f"table {table} gets {spec}; older rows stay where they are")
        case st.SetOptions() | st.ResetOptions():
            yield from _of_sink_options(before, after, _names(action))
        case _:
            return


def _of_sink_options(before: st.CreateSink, after: st.CreateSink, names: set[str]) -> Iterator[Effect]:
    table = table_of(before)
    was, now = (catalogue.SINK.check(one.options, None) for one in (before, after))
    if SinkOptions.STATE_LOCATION.name in names:
        yield Effect("what waits in the old state location is read from the source again", dangerous=True)
    if SinkOptions.BRANCH.name in names:
        yield Effect(f"the branch that table {table} had so far gets no more changes", dangerous=True)
    versions = [one.get(SinkOptions.FORMAT_VERSION) for one in (was, now)]
    if versions[1] == LATEST_FORMAT != versions[0]:
        text = (
            f"the next batch upgrades table {table} to format version 3, if it has version 2, and there is no way back"
        )
        yield Effect(f"{text}: engines that do not know version 3 cannot read it any more", dangerous=True)
    if SinkOptions.TIME_COLUMN.name in names:
        yield Effect("it is refused while rows wait for their time", dangerous=True)
    if SinkOptions.LATE_ROWS.name in names and now.get(SinkOptions.LATE_ROWS) is LateRows.DROP:
        yield Effect("late rows are lost from now on", dangerous=True)
    if now.get(SinkOptions.LATE_ROWS) is LateRows.DROP and _closes_sooner(was, now):
        yield Effect("more rows are late, and late rows are lost", dangerous=True)
    thins = [one.get(SinkOptions.THIN_SNAPSHOTS, ThinSnapshots.HOURLY) is ThinSnapshots.HOURLY for one in (was, now)]
    if thins == [False, True]:
        yield Effect(f"of older snapshots of table {table}, only one per hour is kept", dangerous=True)
    if any(setting.name in names and _is_shorter(was.get(setting), now.get(setting)) for setting in _RETENTION):
        yield Effect(f"older snapshots of table {table} may expire sooner", dangerous=True)


def _closes_sooner(was: CheckedOptions, now: CheckedOptions) -> bool:
    """Whether a logical time may be closed sooner than before."""
    delays = [one.get(SinkOptions.WATERMARK_DELAY, timedelta(0)) for one in (was, now)]
    idle = [one.get(SinkOptions.IDLE_TIMEOUT, timedelta.max) for one in (was, now)]
    return delays[1] < delays[0] or idle[1] < idle[0]


def _is_shorter(before: Any, after: Any) -> bool:
    """Whether snapshots may be kept less long; None is the table's own setting, which only the catalog knows."""
    return before is None or after is None or after < before
