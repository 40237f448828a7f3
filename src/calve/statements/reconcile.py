"""Makes the definitions of a home equal to a pipeline file: `plan/changes.py` plans statements, `apply` executes them.

A statement that fails ends it: those before it were applied, and the next plan contains the rest. What was dropped in
order to be created again is restored first (`_Replacement`), since the next plan would not know it.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from calve.definitions.objects import Definition, spaces
from calve.definitions.store import Definitions
from calve.definitions.workplace import Workplace
from calve.errors import CalveError, InvalidInput
from calve.plan.changes import DefinitionPlan, PlanStep, SinkTableState, plan_changes
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


def plan(place: Workplace, statements: Sequence[st.Statement], *, prune: bool = False) -> DefinitionPlan:
    """What makes the definitions equal to these statements. Changes nothing. Raises InvalidInput."""

    def look(sink: st.CreateSink, definitions: Definitions) -> SinkTableState:
        return _look(place, sink, definitions)

    return plan_changes(statements, place.definitions(), place.vault, look, prune=prune)


def apply(place: Workplace, planned: DefinitionPlan) -> Generator[Outcome, None, None]:
    """Execute a plan, statement by statement; then the statements of the file that define nothing. Close it."""
    unfinished: list[_Replacement] = []
    try:
        for number, step in enumerate(planned.steps):
            if isinstance(step.statement, st.Drop):
                unfinished += _replacements(place, step.statement, planned.steps[number + 1 :])
            yield execute(place, step.statement)
            unfinished = [one for one in unfinished if not one.is_complete_after(step)]
    except BaseException as error:
        for one in reversed(unfinished):
            told = one.undo()
            if isinstance(error, CalveError):
                between = "\n" if "\n" in error.detail else " "  # an excerpt of the statement has lines of its own
                error.detail = between.join(filter(None, (error.detail, told)))
            else:
                error.add_note(told)
        raise
    for statement in planned.others:
        yield execute(place, statement)


def _replacements(place: Workplace, drop: st.Drop, later: Sequence[PlanStep]) -> Iterator["_Replacement"]:
    """What a DROP removes, if later steps create it again."""
    definitions = place.definitions()
    found = definitions.find(drop.name, drop.kind)
    if found is not None and found.kind is not st.ObjectKind.CONNECTION:
        gone = [d for d in (found, *definitions.dependents(found.uid)) if not d.owner]
        names = {(d.kind, d.name) for d in gone}
        again = [step for step in later if (step.kind, step.name) in names]
        if any(isinstance(step.statement, st.Create) for step in again):
            yield _Replacement(place, gone, again)


class _Replacement:
    """Objects between the DROP that removes them and the statements that create them again.

    A table keeps its rows and progress at a DROP, so that the definitions are all that has to be restored: with their
    identity, and a version that no run has seen yet.
    """

    def __init__(self, place: Workplace, dropped: list[Definition], again: list[PlanStep]) -> None:
        self._place = place
        self._dropped = dropped
        self._again = again

    def is_complete_after(self, step: PlanStep) -> bool:
        """Whether a step was the last one of those that create them again."""
        self._again = [one for one in self._again if one is not step]
        return not self._again

    def undo(self) -> str:
        """Restore the objects; returns what became of them, as a sentence."""
        names = ", ".join(d.label for d in self._dropped)
        try:
            self._restore()
        except CalveError as error:
            texts = "; ".join(d.statement.to_sql() for d in self._dropped)
            return f"{names} could not be restored: {error.primary}. They were: {texts}."
        return f"Restored as before: {names}."

    def _restore(self) -> None:
        definitions = self._place.definitions()
        if all(definitions.by_uid(d.uid) == d for d in self._dropped):
            return  # the DROP itself failed
        made, originals = list[Definition](), list[Definition]()
        renamed: dict[str, str] = {}
        for one in self._dropped:
            now = definitions.find(one.reference, *spaces(one.kind))
            version = one.version
            if now is not None:
                made.append(now)
                renamed[now.uid] = one.uid
                version = max(version, now.version) + 1
            originals.append(replace(one, version=version))
        users = [d for d in definitions if d not in made and not renamed.keys().isdisjoint(d.uses)]
        self._place.store.create(originals, made)
        for user in users:  # sinks that the plan let read what was created again
            self._place.store.replace(replace(user, uses=tuple(renamed.get(uid, uid) for uid in user.uses)))


def _look(place: Workplace, sink: st.CreateSink, definitions: Definitions) -> SinkTableState:
    """Ask the catalog about the table of a sink. Raises TransientError if it does not answer."""
    from calve.iceberg.loading import load_table_or_none, sinks_of_table
    from calve.model.spec import TableName
    from calve.pipeline.lakes import lake_of
    from calve.plan.sinks import plan_target

    catalog, store = plan_target(sink, definitions)
    opened = lake_of(place.home, catalog, store, definitions, place.vault).open()
    table = TableName(sink.target.namespace, sink.target.table)
    progress = {uid: one.generation for uid, one in sinks_of_table(opened, table).items()}
    return SinkTableState(exists=load_table_or_none(opened, table) is not None, sinks=progress)
