"""Golden plans: a file before, a file after, and the plan that leads from one to the other.

    # what the block shows
    CREATE ...;                       the file before; lines that start with ! are directives
    ====
    CREATE ...;                       the file after
    ----
    the printed plan, without blank lines

Both files start with `PRELUDE`. Directives: `!wrote SINK` gives the sink a table that holds its progress, `!dropped
SINK` adds that of a dropped one, `!sql ...` executes statements by hand between the two files, `!prune` plans with
--prune. `!file NAME TEXT` adds a line to an input file in the home folder, before the statements that follow it are
executed. `{home}` is the home folder.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from calve.catalog.connect import connect_embedded
from calve.cli.plan import lines_of
from calve.definitions.objects import kind_of
from calve.definitions.workplace import Workplace
from calve.errors import CalveError
from calve.model.progress import Fence, Progress
from calve.plan.changes import DefinitionPlan
from calve.plan.declared import START_OPTIONS, normalise, with_inferred, words_of
from calve.sql.options import NO_OPTIONS
from calve.sql.parser import parse
from calve.sql.statements import Create, CreateConnection, CreateSink, CreateSource, CreateView, ObjectKind
from calve.statements.execute import execute
from calve.statements.reconcile import apply, plan
from tests.support.golden import error_lines

PRELUDE = """
CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE CONNECTION broker TO KAFKA (BROKER = 'localhost:9092') WITH (VALIDATE = false);
"""


class Planned:
    """Answers the blocks of a file, and checks for each that applying its plan leaves nothing to do."""

    def __init__(self, folder: Path, open_home: Callable[[Path], Workplace]) -> None:
        self._home, self._fresh, self._open = folder / "home", folder / "fresh", open_home
        list(self._apply(self._open(self._home), PRELUDE))
        self._home.rename(self._fresh)
        self.blocks = self.changed = 0

    def answer(self, text: str) -> list[str]:
        before, _, after = text.replace("{home}", str(self._home)).partition("\n====\n")
        try:
            place = self._prepared(before)
            self._add_lines(after)
            planned = self._plan(place, after)
            lines = [line.replace(str(self._home), "{home}") for line in lines_of(planned) if line]
            self._check(place, planned, after)
        except CalveError as error:
            return error_lines(error)
        self.blocks += 1
        self.changed += bool(planned.steps)
        return lines

    def _prepared(self, before: str) -> Workplace:
        shutil.rmtree(self._home, ignore_errors=True)
        shutil.copytree(self._fresh, self._home)  # quicker than the statements
        place = self._open(self._home)
        self._add_lines(before)
        self._apply(place, PRELUDE + _statements(before))
        for line in before.splitlines():
            if line.startswith("!wrote "):
                write_progress(place, line.removeprefix("!wrote "))
            elif line.startswith("!dropped "):
                write_progress(place, line.removeprefix("!dropped "), uid="dropped")
            elif line.startswith("!sql "):
                for statement in parse(line.removeprefix("!sql ")):
                    execute(place, statement)
        return place

    def _add_lines(self, text: str) -> None:
        for line in text.splitlines():
            if line.startswith("!file "):
                name, _, content = line.removeprefix("!file ").partition(" ")
                file = self._home / name
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("a", encoding="utf-8") as lines:
                    lines.write(f"{content}\n")

    def _plan(self, place: Workplace, after: str) -> DefinitionPlan:
        return plan(place, list(parse(PRELUDE + _statements(after))), prune="!prune" in after.splitlines())

    def _apply(self, place: Workplace, text: str) -> list[object]:
        return list(apply(place, plan(place, list(parse(text)))))

    def _check(self, place: Workplace, planned: DefinitionPlan, after: str) -> None:
        """Apply the plan: then there is nothing to do, and the definitions are the statements of the file."""
        revision = place.store.revision
        assert self._plan(place, after) == planned
        assert place.store.revision == revision, "planning changed the definitions"
        if planned.blocked:
            return
        list(apply(place, planned))
        again = self._plan(place, after)
        assert again.empty, lines_of(again)
        if planned.empty:
            assert place.store.revision == revision
            return
        for statement in parse(PRELUDE + _statements(after)):
            if isinstance(statement, Create) and statement.to_sql() == statement.to_sql(reveal=True):
                found = place.definitions().find(statement.name, kind_of(statement))
                assert found is not None
                if isinstance(statement, CreateSource) and isinstance(found.statement, CreateSource):
                    statement = with_inferred(found.statement, statement)  # noqa: PLW2901
                assert _text(found.statement) == _text(statement)


def _text(statement: Create) -> str:
    """The statement without layout, and without what acts only when it is executed."""
    stored = normalise(statement)
    if isinstance(stored, CreateSink):
        stored = replace(stored, options=stored.options.without(START_OPTIONS))
    elif isinstance(stored, CreateView):
        stored = replace(stored, query=" ".join(words_of(stored.query)))
    elif isinstance(stored, CreateConnection):
        stored = replace(stored, settings=NO_OPTIONS)
    return stored.to_sql()


def write_progress(place: Workplace, name: str, *, uid: str = "", generation: int = 0) -> None:
    """Let the table of a sink say that this sink, or the one with this uid, has committed to it."""
    (sink,) = (d for d in place.definitions().of(ObjectKind.SINK) if d.name == name)
    assert isinstance(sink.statement, CreateSink)
    catalog = connect_embedded(place.home)
    target = sink.statement.target
    catalog.create_namespace_if_not_exists(target.namespace)
    table = catalog.create_table_if_not_exists(
        (*target.namespace, target.table),
        Schema(NestedField(1, "id", LongType(), required=True), identifier_field_ids=[1]),
    )
    progress = replace(Progress.fresh(uid or sink.uid, Fence(sink.version, 1, "run")), generation=generation)
    with table.transaction() as transaction:
        transaction.set_properties({f"calve.sink.{progress.sink_id}": progress.to_property()})


def _statements(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("!"))
