"""ANALYZE TABLE: resolves its target, and refreshes or drops its metadata.

'folder'                       files of a folder, by their extensions
source                         the files of a source, in its format
namespace.table                a table that a sink writes to, otherwise one of the embedded catalog
connection.namespace.table     a table of a connected catalog
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from calve.analyze.file_pruning import general_of
from calve.analyze.folder_subject import PLUGIN, WORKSPACE, FolderFormat, FolderSubject
from calve.analyze.refresh import AnalyzeRequest, Refreshed, drop_metadata, refresh
from calve.analyze.subject import AnalysisSubject
from calve.analyze.table_subject import TableSubject
from calve.analyze.unit_rows import kept_in
from calve.definitions.workplace import Workplace
from calve.errors import CalveError, InvalidInput
from calve.iceberg.loading import load_table
from calve.iceberg.planning.facts import facts_of
from calve.lake import table_id
from calve.metastore.component import Component
from calve.metastore.information_units import copy_lines
from calve.metastore.tables import TableId, TableUnit, open_tables
from calve.model.relation import FilesInput
from calve.model.spec import NoEnvelope
from calve.plan.lookup import required
from calve.plan.sources import plan_source
from calve.records.columns import declared_schema
from calve.spark.executors import asked_first
from calve.sql import statements as st
from calve.sql.errors import SqlError
from calve.sql.names import FieldPath
from calve.statements.answers import TextAnswer
from calve.statements.tables import table_named
from calve.storage.listing import FileListing, absolute


@dataclass(frozen=True)
class AnalyzeTarget:
    """The target of a statement. DROP METADATA does not need it to exist."""

    label: str
    table: TableId
    subject: Callable[[], AnalysisSubject]


def refresh_metadata(place: Workplace, statement: st.RefreshMetadata) -> TextAnswer:
    """Analyze what is new, and store the result."""
    target = target_of(place, statement.target)
    columns = None if statement.columns is None else tuple(str(column) for column in statement.columns)
    request = AnalyzeRequest(columns, statement.level or st.MetadataLevel.ALL)
    with place.metastore() as metastore:
        tables = open_tables(metastore)
        found = refresh(tables, target.subject(), request)
        _copy(tables, place)
    return TextAnswer(_summary(target.label, found))


def drop_table_metadata(place: Workplace, statement: st.DropMetadata) -> TextAnswer:
    """Drop the metadata of a table. Raises InvalidInput if there is none, unless the statement says IF EXISTS."""
    target = target_of(place, statement.target)
    with place.metastore() as metastore:
        tables = open_tables(metastore)
        known = drop_metadata(tables, target.table)
        _copy(tables, place)
    if not known and not statement.if_exists:
        raise InvalidInput(f"{target.label} has no metadata", hint="Write IF EXISTS to ignore that.")
    return TextAnswer(f"dropped the metadata of {target.label}" if known else f"{target.label} has no metadata")


def _copy(tables: Component[TableUnit], place: Workplace) -> None:
    """The statement is done: without a copy, the next query of INFORMATION_SCHEMA is slower, and that is all."""
    with suppress(CalveError):
        copy_lines(tables, place.home)


def _summary(label: str, found: Refreshed) -> str:
    if found.up_to_date:
        return f"the metadata of {label} is up to date"
    counts = {"new": found.added, "changed": found.changed, "removed": found.removed}
    changes = ", ".join(f"{count:,} {word}" for word, count in counts.items())
    return f"analyzed {label} at level {found.level.value}: {found.files:,} files, {changes}; read {found.looked:,}"


def target_of(place: Workplace, target: st.AnalyzeTarget) -> AnalyzeTarget:
    """Resolve a target. Raises InvalidInput for unknown names."""
    if isinstance(target, str):
        return AnalyzeTarget(f"'{target}'", folder_id(target), partial(_folder, place, target))
    if len(target.parts) == 1:
        return _source(place, target)
    return _table(place, target)


def folder_id(location: str) -> TableId:
    """The identity of a folder in the metastore."""
    return TableId(PLUGIN, WORKSPACE, absolute(location))


def _folder(place: Workplace, location: str) -> FolderSubject:
    """The files of a folder by their extensions; for an empty one, in the format of the last analysis."""
    if not FileListing.of(absolute(location)).files():
        with place.metastore() as metastore:
            reader = kept_in(general_of(open_tables(metastore), folder_id(location))).get("reader")
        if reader is not None:
            return FolderSubject.of(location, asked_first(place.spark), FolderFormat.of_reader(reader))
    return FolderSubject.of(location, asked_first(place.spark))


def _source(place: Workplace, target: FieldPath) -> AnalyzeTarget:
    definitions = place.definitions()
    found = required(definitions, target.parts[0], st.ObjectKind.SOURCE)
    statement = found.statement
    planned = plan_source(statement, definitions) if isinstance(statement, st.CreateSource) else None
    if planned is None or not isinstance(planned.input, FilesInput):
        raise SqlError.at(
            target.where,
            f"{found.label} does not read files",
            hint="ANALYZE works on folders, sources of files and tables.",
        )
    files = planned.input
    subject = partial(_folder_of_source, place, files, plain=isinstance(planned.envelope, NoEnvelope))
    return AnalyzeTarget(found.label, folder_id(files.path), subject)


def _folder_of_source(place: Workplace, files: FilesInput, *, plain: bool) -> FolderSubject:
    """The folder of a source, with the declared columns if the files contain them and Spark reads them the same way."""
    declared = files.schema if plain and files.format in {"csv", "json"} and files.epoch_unit is None else None
    if declared is None and files.format == "csv":
        declared = files.schema
    if declared is not None:
        place.spark()  # Spark parses the DDL
        declared = str(declared_schema(declared).json())
    return FolderSubject.of(
        files.path, asked_first(place.spark), FolderFormat(files.format, dict(files.options), declared)
    )


def _table(place: Workplace, target: FieldPath) -> AnalyzeTarget:
    ref = table_named(place, target).ref
    known = table_id(ref)

    def subject() -> AnalysisSubject:
        catalog = ref.lake.open()
        try:
            return TableSubject(known, facts_of(load_table(catalog, ref.name)), asked_first(place.spark))
        finally:
            catalog.close()

    return AnalyzeTarget(f'table "{target}"', known, subject)
