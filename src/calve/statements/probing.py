"""What CREATE and ALTER ask of catalogs, stores, brokers and folders before a definition is stored."""

import logging
from dataclasses import replace

from calve.catalog.failures import trying
from calve.catalog.properties import store_properties
from calve.definitions.objects import Definition, SinkState
from calve.definitions.store import Definitions
from calve.definitions.workplace import Workplace
from calve.errors import InvalidInput, TransientError
from calve.iceberg.loading import (
    Occupied,
    check_adoptable,
    check_format,
    load_table_or_none,
    planned_location,
    sinks_of_table,
)
from calve.iceberg.planning.change_steps import place_at
from calve.model.connection import AwsConnection, CatalogConnection
from calve.model.relation import TableInput
from calve.model.spec import TableName
from calve.pipeline.lakes import lake_of, revealing, store_of_input
from calve.plan.connections import plan_connection
from calve.plan.sinks import OnOldProgress, SinkPlan
from calve.sql import statements as st
from calve.storage.filesystems import io_properties_of, try_bucket, try_keys
from calve.storage.listing import check_there
from calve.storage.state import check_apart

_log = logging.getLogger("calve")


def try_connection(place: Workplace, statement: st.CreateConnection, definitions: Definitions) -> None:
    """Test a connection: list namespaces and the warehouse's bucket, buckets of the store, or topics of the brokers."""
    planned = plan_connection(statement, definitions)
    if isinstance(planned, CatalogConnection):
        lake = lake_of(place.home, planned, None, definitions, place.vault)
        catalog = lake.open()
        with trying(f'listing the namespaces of connection "{statement.name}"'):
            catalog.list_namespaces()
            try_bucket(planned.warehouse or "", io_properties_of(lake.properties))
    elif isinstance(planned, AwsConnection):
        with trying(f'asking the store of connection "{statement.name}" for its buckets'):
            try_keys(store_properties(planned, revealing(definitions, place.vault)))
    else:
        from calve.pipeline.build import try_brokers

        try_brokers(planned, revealing(definitions, place.vault))


def warn_of_missing_folder(source: str, path: str) -> None:
    """Warn of a missing folder. It may be created later, but it may also be misspelt."""
    try:
        check_there(path)
    except TransientError as error:
        _log.warning("source %s reads nothing yet: there is no folder %s. %s", source, path, error.hint)


def check_start(place: Workplace, found: TableInput, definitions: Definitions) -> None:
    """Check that a table has the point at which changes are to start, if the table exists. Raises InvalidInput."""
    lake = lake_of(place.home, found.catalog, store_of_input(found, definitions), definitions, place.vault)
    table = load_table_or_none(lake.open(), found.table)
    if table is not None:
        place_at(table, found.start)


def decide_start(place: Workplace, definition: Definition, plan: SinkPlan, definitions: Definitions) -> Definition:
    """The definition with the state in which a new sink starts: empty, resumed, adopting, or with a new generation.

    A sink that resumes takes over the identity of the dropped one, with the next version. Existing rows are kept
    (ADOPT) or replaced (SNAPSHOT); only the user decides. Raises InvalidInput if the decision is missing or impossible.
    """
    table: TableName = plan.spec.table
    lake = lake_of(place.home, plan.catalog, plan.store, definitions, place.vault)
    with trying(f"looking at the state location {plan.state}"):
        try_bucket(plan.state or "", io_properties_of(lake.properties))
    catalog = lake.open()
    place_of_table = planned_location(catalog, table)
    if plan.state is not None and place_of_table is not None:
        check_apart(plan.state, place_of_table)
    stopped = sinks_of_table(catalog, table)
    defined = {d.uid for d in definitions.of(st.ObjectKind.SINK)}
    free = {uid: progress for uid, progress in stopped.items() if uid not in defined}
    loaded = load_table_or_none(catalog, table)
    if loaded is not None:
        check_format(loaded, plan.spec.table_format, table, None)
    found = None if loaded is None else Occupied.of(loaded, plan.spec.branch)
    if plan.beginning is OnOldProgress.SNAPSHOT:
        return replace(definition, standing=SinkState(generation=1))
    if plan.beginning is OnOldProgress.RESUME:
        if len(free) != 1:
            raise InvalidInput(
                f"table {table} has {'no' if not free else 'more than one'} dropped sink to resume",
                detail=f"Sinks with progress in it: {', '.join(sorted(free))}." if free else "",
                hint="Leave out RESUME." if not free else "Use SNAPSHOT = true to start over.",
            )
        ((uid, progress),) = free.items()
        standing = SinkState(generation=progress.generation)
        return replace(definition, uid=uid, version=progress.fence.version + 1, standing=standing)
    if plan.spec.adopts:
        from calve.pipeline.build import sink_of
        from calve.pipeline.existing_rows import check_adoption

        check_adoption(sink_of(place.home, plan, definitions, place.vault))
        if loaded is None:
            raise InvalidInput(
                f"there is no table {table} to adopt",
                hint="Leave out ADOPT: a sink creates the table that it writes to.",
            )
        check_adoptable(loaded, table, definition.uid)
        return definition
    if free:
        raise InvalidInput(
            f"table {table} has the progress of a dropped sink",
            detail=f"Sinks: {', '.join(sorted(free))}.",
            hint="Write WITH (RESUME = true) to continue where it stopped, WITH (SNAPSHOT = true) to refill it, or "
            "WITH (ADOPT = true) to keep its rows and read the source from its start.",
        )
    if found is not None and found.written:
        raise InvalidInput(
            f"table {table} has {'rows' if found.rows else 'snapshots'} that no run of this sink wrote",
            hint="WITH (ADOPT = true) adopts it, WITH (SNAPSHOT = true) replaces its rows.",
        )
    return definition
