"""SHOW CONSUMERS: who keeps the history of tables, and how far they are behind.

Lists the consumers of all tables that sources of this home read and sinks of this home write, whoever the consumers
belong to.
"""

from calve.definitions.store import Definitions
from calve.definitions.workplace import Workplace
from calve.errors import InvalidInput
from calve.iceberg.loading import load_table_or_none
from calve.iceberg.snapshot.consumers import OF_STREAM, consumers_of
from calve.model.connection import AwsConnection, CatalogConnection
from calve.model.instants import instant_text
from calve.model.relation import TableInput
from calve.model.spec import TableName
from calve.pipeline.lakes import lake_of, store_of_input
from calve.plan.sinks import plan_sink
from calve.plan.sources import plan_source
from calve.sql import statements as st
from calve.statements.answers import RowsAnswer

_HEADINGS = ("consumer", "sink", "table", "snapshot", "behind", "since", "kept until")


def show_consumers(place: Workplace) -> RowsAnswer:
    """The consumers, by table. Raises TransientError if a catalog does not respond."""
    definitions = place.definitions()
    sinks = {OF_STREAM: "(stream)", **{found.uid: found.name for found in definitions.of(st.ObjectKind.SINK)}}
    rows = []
    for (catalog, name), store in sorted(_tables(definitions).items(), key=lambda known: str(known[0][1])):
        table = load_table_or_none(lake_of(place.home, catalog, store, definitions, place.vault).open(), name)
        for found in consumers_of(table) if table is not None else ():
            behind = "history was changed" if found.behind is None else str(found.behind)
            times = (_shown(found.since_ms), _shown(found.released_ms))
            sink = sinks.get(found.sink_id, found.sink_id)
            rows.append((found.name, sink, str(name), str(found.snapshot_id), behind, *times))
    return RowsAnswer(_HEADINGS, tuple(rows))


def _tables(definitions: Definitions) -> dict[tuple[CatalogConnection, TableName], AwsConnection | None]:
    found: dict[tuple[CatalogConnection, TableName], AwsConnection | None] = {}
    for definition in definitions.of(st.ObjectKind.SOURCE, st.ObjectKind.SINK):
        try:
            if isinstance(definition.statement, st.CreateSource):
                read = plan_source(definition.statement, definitions).input
                if isinstance(read, TableInput):
                    found.setdefault((read.catalog, read.table), store_of_input(read, definitions))
            else:
                plan = plan_sink(definition, definitions)
                found[plan.catalog, plan.spec.table] = plan.store
        except InvalidInput:
            continue  # running it reports that
    return found


def _shown(millis: int | None) -> str:
    return "" if millis is None else instant_text(millis, " UTC")
