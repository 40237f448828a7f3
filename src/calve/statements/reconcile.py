"""Makes the definitions of a home equal to a pipeline file: `plan/changes.py` plans statements, `apply` executes them.

A statement that fails ends it: those before it were applied, and the next plan contains the rest.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from calve.definitions.store import Definitions
from calve.definitions.workplace import Workplace
from calve.errors import InvalidInput
from calve.plan.changes import ChangePlan, TableState, plan_changes
from calve.sql import statements as st
from calve.sql.parser import parse
from calve.statements.answers import Outcome
from calve.statements.execute import execute


def read_files(files: Iterable[Path]) -> list[st.Statement]:
    """The statements of pipeline files. Raises InvalidInput."""
    found: list[st.Statement] = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f'cannot read "{file}"', detail=f"{error}.") from error
        found += parse(text)
    return found


def plan(place: Workplace, statements: Sequence[st.Statement], *, prune: bool = False) -> ChangePlan:
    """What makes the definitions equal to these statements. Changes nothing. Raises InvalidInput."""

    def look(sink: st.CreateSink, definitions: Definitions) -> TableState:
        return _look(place, sink, definitions)

    return plan_changes(statements, place.definitions(), place.vault, look, prune=prune)


def apply(place: Workplace, planned: ChangePlan) -> Iterator[Outcome]:
    """Execute a plan, statement by statement; then the statements of the file that define nothing."""
    for step in planned.steps:
        yield execute(place, step.statement)
    for statement in planned.others:
        yield execute(place, statement)


def _look(place: Workplace, sink: st.CreateSink, definitions: Definitions) -> TableState:
    """Ask the catalog about the table of a sink. Raises TransientError if it does not answer."""
    from calve.iceberg.loading import Occupied, sinks_of_table
    from calve.model.spec import TableName
    from calve.pipeline.lakes import lake_of
    from calve.plan.sinks import plan_target

    catalog, store = plan_target(sink, definitions)
    opened = lake_of(place.home, catalog, store, definitions, place.vault).open()
    table = TableName(sink.target.namespace, sink.target.table)
    progress = frozenset(sinks_of_table(opened, table))
    return TableState(exists=Occupied.of(opened, table, "main") is not None, sinks=progress)
