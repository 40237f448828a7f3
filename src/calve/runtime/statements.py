"""Executes statements: every statement is checked, then applied to the definitions, and answered.

    CREATE, ALTER, DROP    change definitions (`creation`, `alteration`); running sinks notice
    SHOW, EXPLAIN          only look (`showing`)
    VALIDATE               tries a connection
    ANALYZE                fills the metastore (`analysis`)
    SELECT                 asks it (`information`)

Nothing here runs a sink: that is the supervisor's, which reads the definitions.
"""

from calve.errors import InvalidInput
from calve.runtime import alteration, analysis, creation, information, showing
from calve.runtime.outcome import Outcome
from calve.runtime.workplace import Workplace
from calve.sql import statements as st


def execute(place: Workplace, statement: st.Statement) -> Outcome:
    """Run one statement."""
    match statement:
        case st.Create():
            return creation.create(place, statement)
        case st.Alter():
            return alteration.alter(place, statement)
        case st.Drop():
            return alteration.drop(place, statement)
        case st.Show():
            return showing.show(place, statement)
        case st.ShowCreate():
            return showing.show_create(place, statement)
        case st.Explain():
            return showing.explain(place, statement)
        case st.Validate():
            return creation.validate(place, statement)
        case _:
            return _metadata(place, statement)


def _metadata(place: Workplace, statement: st.Statement) -> Outcome:
    """Statements about the metadata of tables."""
    match statement:
        case st.RefreshMetadata():
            return analysis.refresh_metadata(place, statement)
        case st.DropMetadata():
            return analysis.drop_of_metadata(place, statement)
        case st.Query():
            return information.select(place, statement)
        case _:
            raise InvalidInput(f"this cannot be executed: {statement.to_sql()}")
