"""SHOW COLUMNS, DESCRIBE and SHOW SNAPSHOTS: tables, sources and views in words."""

from calve.catalog.failures import trying
from calve.definitions.objects import Definition
from calve.definitions.workplace import Workplace
from calve.iceberg.describe import columns_of_table, snapshots_of_table
from calve.iceberg.loading import load_table
from calve.model.frontier import Frontier
from calve.model.instants import datetime_at
from calve.sql import statements as st
from calve.statements.answers import RowsAnswer
from calve.statements.tables import relation_named, table_named

_COLUMNS = ("column", "type", "null", "key", "partitions")
_SNAPSHOTS = ("snapshot", "committed (UTC)", "operation", "rows added", "deletes", "files", "frontier", "ref")


def show_columns(place: Workplace, statement: st.ShowColumns) -> RowsAnswer:
    """The columns of a table, a source or a view. Only a view needs Spark."""
    definitions = place.definitions()
    sink = definitions.find(statement.name.parts[0], st.ObjectKind.SINK) if len(statement.name.parts) == 1 else None
    relation = relation_named(definitions, statement.name) if sink is None else None
    if relation is not None:
        return RowsAnswer(_COLUMNS, tuple(_columns_of_relation(place, relation)))
    table = table_named(place, statement.name).ref
    with trying(f"describing table {table}"):
        columns = columns_of_table(load_table(table.lake.open(), table.name))
    return RowsAnswer(
        _COLUMNS,
        tuple(
            (c.name, c.type, "yes" if c.nullable else "no", "key" if c.key else "", ", ".join(c.partitions))
            for c in columns
        ),
    )


def _columns_of_relation(place: Workplace, relation: Definition) -> list[tuple[str, ...]]:
    statement = relation.statement
    if isinstance(statement, st.CreateSource) and statement.columns:
        key = {name.name for name in statement.primary_key}
        return [
            (
                column.name.name,
                column.type,
                "no" if column.not_null or column.name.name in key else "yes",
                "key" if column.name.name in key else "",
                "",
            )
            for column in statement.columns
        ]
    from calve.statements.views import columns_of_relation  # a view, or a source whose input decides

    return [
        (name, kind, "yes" if nullable else "no", "", "")
        for name, kind, nullable in columns_of_relation(place, relation)
    ]


def show_snapshots(place: Workplace, statement: st.ShowSnapshots) -> RowsAnswer:
    """The snapshots of a table, newest first; `calve read --snapshot`, `--as-of` and `--as-of-frontier` read them."""
    table = table_named(place, statement.name).ref
    with trying(f"reading the history of table {table}"):
        snapshots = snapshots_of_table(load_table(table.lake.open(), table.name))
    return RowsAnswer(
        _SNAPSHOTS,
        tuple(
            (
                str(one.snapshot_id),
                _instant(one.timestamp_ms),
                one.operation,
                f"{one.added_rows:,}",
                f"{one.deletes:,}",
                f"{one.data_files:,}",
                _frontier(one.frontier),
                ", ".join(one.refs),
            )
            for one in snapshots
        ),
    )


def _instant(millis: int) -> str:
    moment = datetime_at(millis)
    return str(millis) if moment is None else moment.replace(tzinfo=None).isoformat(" ", "milliseconds")


def _frontier(text: str | None) -> str:
    """A frontier in milliseconds, as `--as-of-frontier` takes it."""
    if text is None:
        return ""
    try:
        found = Frontier.from_json(text)
    except ValueError:
        return text
    return "sealed" if found.time is None else str(found.time)
