"""Resolves the names of tables in statements.

sink                           the table of a sink
namespace.table                a table that a sink writes to, otherwise one of the embedded catalog
connection.namespace.table     a table of a connected catalog
"""

from dataclasses import dataclass

from calve.definitions.objects import RELATIONS, Definition
from calve.definitions.store import Definitions
from calve.definitions.workplace import Workplace
from calve.errors import InvalidInput
from calve.lake import Lake, TableRef
from calve.model.connection import CatalogConnection
from calve.model.spec import TableName
from calve.pipeline.lakes import lake_of, store_of_sinks
from calve.plan.connections import plan_connection
from calve.plan.sinks import plan_target
from calve.sql import statements as st
from calve.sql.errors import SqlError
from calve.sql.names import FieldPath, Identifier
from calve.suggest import suggestion


@dataclass(frozen=True)
class NamedTable:
    """A table, and the sink by whose name it was found, if any."""

    ref: TableRef
    sink: Definition | None = None


def table_named(place: Workplace, name: FieldPath) -> NamedTable:
    """The table that a name refers to; it need not exist. Raises SqlError for unknown names."""
    definitions = place.definitions()
    if len(name.parts) == 1:
        return _of_sink(place, name.parts[0], definitions)
    found = definitions.find(name.parts[0], st.ObjectKind.CONNECTION) if len(name.parts) > 2 else None
    if found is not None:
        return NamedTable(TableRef(_lake(place, found, definitions), _table_name(name.parts[1:])))
    wanted = _table_name(name.parts)
    writing = [
        sink
        for sink in definitions.of(st.ObjectKind.SINK)
        if isinstance(sink.statement, st.CreateSink) and _target(sink.statement) == wanted
    ]
    refs = {sink.uid: _of_definition(place, sink, definitions) for sink in writing}
    lakes = {ref.lake.label for ref in refs.values()}
    if len(lakes) > 1:
        raise SqlError.at(
            name.where,
            f'table "{name}" exists in several catalogs',
            hint="Write connection.namespace.table, or the name of a sink.",
        )
    ref = next(iter(refs.values()), None)
    return NamedTable(ref or TableRef(Lake(place.home, {}), wanted), writing[0] if writing else None)


def relation_named(definitions: Definitions, name: FieldPath) -> Definition | None:
    """The source or view that a name refers to."""
    return definitions.find(name.parts[0], *RELATIONS) if len(name.parts) == 1 else None


def names_of_tables(definitions: Definitions) -> list[str]:
    """The names under which tables of sinks can be queried."""
    sinks = [sink.statement for sink in definitions.of(st.ObjectKind.SINK)]
    targets = [str(_target(sink)) for sink in sinks if isinstance(sink, st.CreateSink)]
    return sorted({*targets, *(sink.name.name for sink in sinks)})


def _of_sink(place: Workplace, name: Identifier, definitions: Definitions) -> NamedTable:
    found = definitions.find(name, st.ObjectKind.SINK)
    if found is not None:
        return NamedTable(_of_definition(place, found, definitions), found)
    relation = definitions.find(name, *RELATIONS)
    if relation is not None:
        reading = [d for d in definitions.dependents(relation.uid) if d.kind is st.ObjectKind.SINK]
        targets = [str(_target(d.statement)) for d in reading if isinstance(d.statement, st.CreateSink)]
        raise SqlError.at(
            name.where,
            f"{relation.label} is not a table",
            hint=f"Its rows are in {', '.join(targets)}." if targets else "Create a sink that writes it to a table.",
        )
    known = names_of_tables(definitions)
    hint = suggestion(name.name, known) or (f"There are {', '.join(known[:10])}." if known else "Create a sink first.")
    raise SqlError.at(name.where, f'there is no table or sink "{name}"', hint=hint)


def _of_definition(place: Workplace, sink: Definition, definitions: Definitions) -> TableRef:
    statement = sink.statement
    if not isinstance(statement, st.CreateSink):
        raise TypeError(f"{sink.label} is not a sink")
    catalog, store = plan_target(statement, definitions)
    return TableRef(lake_of(place.home, catalog, store, definitions, place.vault), _target(statement))


def _lake(place: Workplace, found: Definition, definitions: Definitions) -> Lake:
    statement = found.statement
    planned = plan_connection(statement, definitions) if isinstance(statement, st.CreateConnection) else None
    if not isinstance(planned, CatalogConnection):
        raise InvalidInput(f"{found.label} does not lead to a catalog")
    return lake_of(place.home, planned, store_of_sinks(found, definitions), definitions, place.vault)


def _target(statement: st.CreateSink) -> TableName:
    return TableName(tuple(statement.target.namespace), statement.target.table)


def _table_name(parts: tuple[Identifier, ...]) -> TableName:
    *namespace, table = [part.name for part in parts]
    return TableName(tuple(namespace), table)
