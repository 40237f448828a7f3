"""Executes statements: checks each one, applies it to the definitions, and returns its result.

    CREATE, ALTER, DROP    change definitions (`create`, `alter`); running sinks notice
    SHOW, EXPLAIN          only read (`show`), tables, too (`describe`)
    VALIDATE               tests a connection (`create`)
    ANALYZE                fills the metastore (`analyze`)
    SELECT                 queries it (`select`)
    OPTIMIZE, EXPIRE, ...  maintain a table (`maintenance`)

Nothing here runs a sink: the supervisor does, from the definitions. Each statement imports its own module, since most
answer sooner than Spark could be imported.
"""

from typing import TYPE_CHECKING

from calve.errors import InvalidInput
from calve.sql import statements as st
from calve.statements.answers import Outcome

if TYPE_CHECKING:
    from calve.definitions.workplace import Workplace


def execute(place: "Workplace", statement: st.Statement) -> Outcome:
    """Execute one statement."""
    match statement:
        case st.Show() | st.ShowCreate() | st.Explain():
            return _show(place, statement)
        case st.Create() | st.Validate() | st.Alter() | st.Drop():
            return _define(place, statement)
        case st.ShowColumns() | st.ShowSnapshots():
            return _describe(place, statement)
        case _:
            return _metadata(place, statement)


def _describe(place: "Workplace", statement: st.ShowColumns | st.ShowSnapshots) -> Outcome:
    """Statements that only read tables."""
    from calve.statements import describe

    match statement:
        case st.ShowColumns():
            return describe.show_columns(place, statement)
        case st.ShowSnapshots():
            return describe.show_snapshots(place, statement)


def _show(place: "Workplace", statement: st.Show | st.ShowCreate | st.Explain) -> Outcome:
    """Statements that only read definitions."""
    from calve.statements import show

    match statement:
        case st.Show():
            return show.show(place, statement)
        case st.ShowCreate():
            return show.show_create(place, statement)
        case st.Explain():
            return show.explain(place, statement)


def _define(place: "Workplace", statement: st.Create | st.Validate | st.Alter | st.Drop) -> Outcome:
    """Statements about definitions."""
    from calve.statements import create

    match statement:
        case st.Create():
            return create.create(place, statement)
        case st.Validate():
            return create.validate(place, statement)
    from calve.statements import alter

    match statement:
        case st.Alter():
            return alter.alter(place, statement)
        case st.Drop():
            return alter.drop(place, statement)


def _metadata(place: "Workplace", statement: st.Statement) -> Outcome:
    """Statements about the metadata and the files of tables, and queries."""
    if isinstance(statement, st.SelectQuery):
        from calve.statements import select

        return select.select(place, statement)
    if isinstance(statement, st.MaintainTable):
        from calve.statements import maintenance

        return maintenance.maintain_table(place, statement)
    from calve.statements import analyze

    match statement:
        case st.RefreshMetadata():
            return analyze.refresh_metadata(place, statement)
        case st.DropMetadata():
            return analyze.drop_table_metadata(place, statement)
        case _:
            raise InvalidInput(f"cannot execute {statement.to_sql()}")
