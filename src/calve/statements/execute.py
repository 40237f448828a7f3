"""Executes statements: every statement is checked, then applied to the definitions, and answered.

    CREATE, ALTER, DROP    change definitions (`creation`, `alteration`); running sinks notice
    SHOW, EXPLAIN          only look (`showing`)
    VALIDATE               tries a connection
    ANALYZE                fills the metastore (`analysis`)
    SELECT                 asks it (`information`)

Nothing here runs a sink: that is the supervisor's, which reads the definitions.
"""

from calve.definitions.workplace import Workplace
from calve.errors import InvalidInput
from calve.sql import statements as st
from calve.statements import alter, analyze, create, select, show
from calve.statements.answers import Outcome


def execute(place: Workplace, statement: st.Statement) -> Outcome:
    """Run one statement."""
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
            return analyze.drop_of_metadata(place, statement)
        case st.SelectQuery():
            return select.select(place, statement)
        case _:
            raise InvalidInput(f"this cannot be executed: {statement.to_sql()}")
