"""What is known of sinks as plain values for JSON (pure).

Ids of snapshots have more digits than a number in JavaScript keeps: they are texts. Nothing here contains an option of
a connection: neither secrets nor addresses.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from calve import __version__
from calve.api.letters import LetterNote
from calve.definitions.objects import Definition
from calve.definitions.store import Definitions
from calve.errors import CalveError
from calve.iceberg.planning.table_details import SnapshotNote, TableDetails
from calve.model.health import CommitReport, Health, Status
from calve.model.relation import FilesInput, GeneratorInput, KafkaInput, SourcePlan, TableInput
from calve.model.spec import Maintenance
from calve.plan.sinks import SinkPlan, plan_sink
from calve.sql.statements import CreateSink
from calve.sql.values import format_duration
from calve.web.tables import LoadedTable

RECENT = 40
"""Commits of the overview's small charts."""
MOST_TEXT = 4_000
"""Characters of a cause or a hint."""
NEVER = "never run"
"""The state of a sink that is defined and has no status."""

Json = dict[str, Any]


@dataclass(frozen=True)
class DefinedSink:
    """The definition of a sink."""

    definition: Definition
    plan: SinkPlan | None
    """None if it cannot be planned: its status says why once it runs."""
    definitions: Definitions


@dataclass(frozen=True)
class Known:
    """Everything that is known of one sink."""

    name: str
    status: Status | None
    defined: DefinedSink | None
    loaded: LoadedTable
    commits: tuple[CommitReport, ...] = ()
    """The last commits by their log, oldest first."""

    @cached_property
    def table(self) -> TableDetails | None:
        """The details of the table, if it is this sink's: without a definition the commits of its run decide."""
        found = self.loaded.details
        if found is None or self.defined is not None or self.status is None:
            return found
        begun = self.status.started_ms
        own = {self.status.last_snapshot_id, *(one.snapshot_id for one in self.commits if one.at_ms >= begun)}
        return found if any(note.snapshot_id in own for note in found.history) else None

    @property
    def letters(self) -> tuple[LetterNote, ...]:
        """The newest dead letters, if they are of this sink."""
        return () if self.table is None else self.loaded.letters


def planned(definition: Definition, definitions: Definitions) -> DefinedSink:
    """Plan a sink, if it can be planned."""
    try:
        return DefinedSink(definition, plan_sink(definition, definitions), definitions)
    except CalveError:
        return DefinedSink(definition, None, definitions)


def shape_home(home: str, problem: str, sinks: list[Json]) -> Json:
    """All sinks of a home folder."""
    wrong = sum(sink["wrong"] for sink in sinks)
    return {"version": __version__, "home": home, "problem": problem, "sinks": sinks, "wrong": wrong}


def summarize_sink(known: Known) -> Json:
    """One sink in a list. Its revision changes when its details do."""
    status, defined = known.status, known.defined
    shown: Json = {"name": known.name, "table": _table_name(known), "wrong": status is not None and status.health.wrong}
    if status is None:
        paused = defined is not None and defined.definition.standing.paused
        shown |= {"health": Health.PAUSED.value if paused else NEVER}
    else:
        shown |= _numbers(status)
    by_table = [note.added_rows for note in _own_notes(known) if not note.claim]
    by_log = [commit.rows for commit in known.commits]
    shown["recent"] = (by_log if len(by_log) >= min(len(by_table), RECENT) else by_table)[-RECENT:]
    shown["revision"] = _revision(known)
    return shown


def _revision(known: Known) -> str:
    """Identifies what the details of a sink show."""
    status, defined = known.status, known.defined
    newest = known.commits[-1].snapshot_id if known.commits else None
    parts: list[object] = [known.loaded.loaded_ms, known.loaded.error, newest]
    if defined is not None:
        parts += [defined.definition.uid, defined.definition.version, defined.plan is None]
    if status is not None:
        parts += [status.process, status.states, status.maintaining, status.next_maintenance, status.maintenance]
        parts += [status.source, status.source_name, status.state_sizes, status.last_snapshot_id]
    return hashlib.blake2s(json.dumps(parts, default=vars).encode(), digest_size=8).hexdigest()


def _table_name(known: Known) -> str:
    if known.status is not None and known.status.table:
        return known.status.table
    statement = known.defined.definition.statement if known.defined else None
    return ".".join((*statement.target.namespace, statement.target.table)) if isinstance(statement, CreateSink) else ""


def _numbers(status: Status) -> Json:
    """What a status says, without the histories."""
    left_out = {"sink", "table", "states", "maintenance", "table_health", "source", "process"}
    body = {name: value for name, value in vars(status).items() if name not in left_out}
    body["ended_caught_up"] = status.ended_caught_up
    body["last_snapshot_id"] = _text(status.last_snapshot_id)
    return body | _clipped(body)


def _clipped(body: Json) -> Json:
    """The texts of a problem; they are pushed to everybody who listens, so they have an end."""
    return {name: f"{body[name][:MOST_TEXT]}…" for name in ("cause", "hint") if len(body[name]) > MOST_TEXT}


@dataclass(frozen=True)
class DetailPart:
    """A part of the details of a sink: what it is made of, and how."""

    made_of: Callable[[Known], tuple[object, ...]]
    """Values that are never changed: the same ones make the same part."""
    shape: Callable[[Known], Any]


# ---- commits


def _own_notes(known: Known) -> list[SnapshotNote]:
    """Commits of the sink as its table lists them, oldest first."""
    table, sink_id = known.table, _sink_id(known)
    notes = table.history if table else ()
    return [note for note in notes if note.sink_id and note.sink_id == (sink_id or note.sink_id)]


def _snapshot(note: SnapshotNote) -> Json:
    return {
        "snapshot": str(note.snapshot_id),
        "at_ms": note.timestamp_ms,
        "kind": "claim" if note.claim else "batch",
        "frontier": note.frontier,
        "rows": note.added_rows,
        "deletes": note.added_deletes,
        "files": note.added_files,
        "bytes": note.added_bytes,
        "epoch": note.epoch,
    }


def commits_by_table(known: Known) -> dict[str, Json]:
    """All snapshots that the table lists, oldest first."""
    table, own = known.table, {note.snapshot_id for note in _own_notes(known)}
    found = {}
    for note in table.history if table else ():
        body = _snapshot(note)
        if note.snapshot_id not in own:
            kind = "maintenance" if note.operation == "replace" else "other writer"
            body |= {"kind": kind, "removed": note.removed_files}
        found[body["snapshot"]] = body
    return found


def shape_commit(report: CommitReport, by_table: Json | None) -> Json:
    """A commit by its report, and by the table if that lists it."""
    body: Json = {**vars(report), "kind": "batch", "snapshot": str(report.snapshot_id)}
    del body["snapshot_id"]
    if by_table is None:
        return body
    if not report.at_ms:
        body["at_ms"] = by_table["at_ms"]
    return {**by_table, **body}


# ---- the table


def _details(known: Known) -> Json:
    loaded, table = known.loaded, known.table
    shown: Json = {"loaded_ms": loaded.loaded_ms, "error": loaded.error, "found": table is not None}
    if table is None:
        return shown
    body = asdict(replace(table, history=(), progress={}))
    del body["history"], body["progress"]
    body["snapshot_id"] = _text(table.snapshot_id)
    if table.files is not None:
        body["live_rows"] = table.rows - table.files.deleted_rows
    if known.status is not None:
        body["state_bytes"] = known.status.state_bytes
    return shown | body


def _upkeep(known: Known) -> Json:
    """Maintenance: what runs, what ran, and what would be done now."""
    status, defined, table = known.status, known.defined, known.table
    automatic = None if defined is None or defined.plan is None else defined.plan.spec.maintenance is Maintenance.AUTO
    return {
        "automatic": automatic,
        "running": status.maintaining if status else "",
        "next": status.next_maintenance if status else "",
        "runs": [asdict(report) for report in status.maintenance] if status else [],
        "due": asdict(table.files.due) if table is not None and table.files is not None else None,
    }


# ---- the input


def _input(known: Known) -> Json:
    status, table = known.status, known.table
    parts = [asdict(part) for part in status.source] if status else []
    stated = table.progress.get(_sink_id(known) or "") if table else None
    if not parts and stated is not None and stated.offsets_known:
        parts = _parts(stated.offsets)
    changes = [asdict(change) for change in table.schema_changes] if table else []
    return {
        "name": (status.source_name if status else "") or (stated.query_id if stated else ""),
        "parts": parts,
        "checkpoint": stated.checkpoint if stated else None,
        "schema_changes": changes,
    }


def _parts(offsets: str | None) -> list[Json]:
    """Committed positions by partition, if the source has partitions."""
    try:
        body = json.loads(offsets or "null")
        following = body["next"].items()
        return [{"name": str(name), "read": int(at), "end": None, "oldest": None} for name, at in following]
    except (ValueError, TypeError, KeyError, AttributeError):
        return []


def _definition(defined: DefinedSink | None) -> Json | None:
    if defined is None:
        return None
    found = defined.definition
    shown: Json = {"version": found.version, "paused": found.standing.paused, "sql": found.statement.pretty()}
    plan = defined.plan
    if plan is not None:
        spec = plan.spec
        shown |= {
            "source": plan.source.relation.name,
            "source_kind": _kind(plan.source),
            "envelope": type(spec.envelope).__name__,
            "views": [view.name for view in plan.views],
            "catalog": plan.catalog.type.value,
            "key": list(spec.key),
            "mode": "append" if spec.append else "upsert",
            "staged": spec.window_ms is not None or spec.times is not None,
            "commit_interval": format_duration(plan.commit_every) if plan.commit_every else "",
            "branch": spec.branch,
        }
    return shown


def _kind(source: SourcePlan) -> str:
    match source.input:
        case FilesInput() as found:
            return f"{found.format} files"
        case GeneratorInput():
            return "generated orders"
        case KafkaInput() as found:
            return f"Kafka topic {found.topic}"
        case TableInput() as found:
            return f"Iceberg table {found.table}"


def _sink_id(known: Known) -> str | None:
    return known.defined.definition.uid if known.defined is not None else None


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


def _states(known: Known) -> list[Json]:
    return [(found := asdict(change)) | _clipped(found) for change in known.status.states] if known.status else []


def _process(known: Known) -> Json | None:
    status = known.status
    return asdict(status.process) if status is not None and status.process is not None else None


def _of_status(known: Known, *names: str) -> tuple[object, ...]:
    return tuple(getattr(known.status, name, None) for name in names)


PARTS: Mapping[str, DetailPart] = {
    "definition": DetailPart(lambda known: (known.defined,), lambda known: _definition(known.defined)),
    "process": DetailPart(lambda known: _of_status(known, "process"), _process),
    "states": DetailPart(lambda known: _of_status(known, "states"), _states),
    "details": DetailPart(lambda known: (known.loaded, known.table, *_of_status(known, "state_sizes")), _details),
    "upkeep": DetailPart(
        lambda known: (
            *(known.defined, known.table),
            *_of_status(known, "maintaining", "next_maintenance", "maintenance"),
        ),
        _upkeep,
    ),
    "input": DetailPart(
        lambda known: (known.defined, known.table, *_of_status(known, "source", "source_name")),
        _input,
    ),
    "letters": DetailPart(lambda known: (known.letters,), lambda known: [asdict(letter) for letter in known.letters]),
}
"""The details of a sink, but for its commits."""
