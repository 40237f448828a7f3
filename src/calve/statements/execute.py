"""Executes statements: checks each one, applies it to the definitions, and returns its result.

    CREATE, ALTER, DROP    change definitions (`create`, `alter`); running sinks notice
    SHOW, EXPLAIN          only read (`show`)
    VALIDATE               tests a connection (`create`)
    ANALYZE                fills the metastore (`analyze`)
    SELECT                 queries it (`select`)

Nothing here runs a sink: the supervisor does, from the definitions.
"""

from calve.definitions.workplace import Workplace
from calve.errors import InvalidInput
from calve.sql import statements as st
from calve.statements import alter, analyze, create, select, show
from calve.statements.answers import Outcome


def execute(place: Workplace, statement: st.Statement) -> Outcome:
    """Execute one statement."""
    match statement:
        case st.Create():
            return create.create(place, statement)
        case st.Alter():
            return alter.alter(place, statement)
        case st.Drop():
            return alter.drop(place, statement)
        case st.Show():
            return show.show(place, statement)
        case st.ShowCreate():
            return show.show_create(place, statement)
        case st.Explain():
            return show.explain(place, statement)
        case st.Validate():
            return create.validate(place, statement)
        case _:
            return _metadata(place, statement)


def _metadata(place: Workplace, statement: st.Statement) -> Outcome:
    """Statements about the metadata of tables."""
    match statement:
        case st.RefreshMetadata():
            return analyze.refresh_metadata(place, statement)
        case st.DropMetadata():
            return analyze.drop_table_metadata(place, statement)
        case st.SelectQuery():
            return select.select(place, statement)
        case _:
            raise InvalidInput(f"cannot execute {statement.to_sql()}")
