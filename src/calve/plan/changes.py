"""A pipeline file and the definitions of a home -> the statements that make the definitions equal to the file.

    file ──► what differs (`declared`) ──► ALTER, or DROP and CREATE ──► an order in which each is valid ──► plan

Every statement is checked here as far as that needs neither Spark nor a catalog, against the definitions that those
before it leave. Only what replaces a sink asks the catalog (`TableLook`): a table keeps its key and its rows. Nothing
is changed: `statements/reconcile.py` executes the plan.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise

from calve.definitions.objects import RELATIONS, Definition, kind_of, spaces
from calve.definitions.store import Definitions
from calve.definitions.vault import Vault
from calve.errors import CalveError
from calve.model.names import check_name
from calve.model.relation import FilesInput, GeneratorInput, KafkaInput, SourcePlan, TableInput, folder_of
from calve.plan import catalogue
from calve.plan.alterations import ALTERED, altered
from calve.plan.catalogue import ConnectionStatementOptions, FilesOptions, KafkaSourceOptions, SinkOptions
from calve.plan.connections import plan_connection, uses_of_connection
from calve.plan.declared import (
    START_OPTIONS,
    Comparison,
    Difference,
    column_changes,
    hide_literals,
    normalise,
    start_options,
    with_inferred,
    words_of,
)
from calve.plan.effects import Effect, effects_of_alter, effects_of_create, effects_of_drop, table_of
from calve.plan.lookup import in_use, required
from calve.plan.sinks import plan_sink, resolve_source, uses_of_sink
from calve.plan.sources import plan_source, uses_of_source
from calve.sql import parts
from calve.sql import statements as st
from calve.sql.errors import SqlError
from calve.sql.names import Identifier
from calve.sql.options import Option, Options


@dataclass(frozen=True)
class SinkTableState:
    """What a catalog says about the table of a sink."""

    exists: bool
    sinks: Mapping[str, int]
    """Uids of the sinks whose progress it holds, each with its generation."""


TableLook = Callable[[st.CreateSink, Definitions], SinkTableState]


@dataclass(frozen=True)
class PlanStep:
    """One statement of a plan: the differences that it closes, and what it does."""

    kind: st.ObjectKind
    name: str
    statement: st.Statement
    differences: tuple[str, ...] = ()
    effects: tuple[Effect, ...] = ()

    @property
    def dangerous(self) -> bool:
        """Whether the user has to agree."""
        return any(effect.dangerous for effect in self.effects)

    @property
    def action(self) -> str:
        """create, alter or drop."""
        return self.statement.to_sql().partition(" ")[0].lower()


@dataclass(frozen=True)
class Blocked:
    """A difference that no statement closes as long as the file says what it says."""

    kind: st.ObjectKind
    name: str
    differences: tuple[str, ...]
    way: str
    """What the user can do."""


@dataclass(frozen=True)
class DefinitionPlan:
    """What makes the definitions equal to a file."""

    steps: tuple[PlanStep, ...]
    blocked: tuple[Blocked, ...] = ()
    unlisted: tuple[Definition, ...] = ()
    """Objects that the file does not create, and that no step drops."""
    others: tuple[st.Statement, ...] = ()
    """Statements of the file that are executed by every run: they define nothing."""
    notes: tuple[str, ...] = ()
    pruned: bool = False
    """Whether the steps drop unlisted objects, unless others need them."""

    @property
    def empty(self) -> bool:
        """Whether the definitions are as the file says."""
        return not self.steps and not self.blocked

    @property
    def dangerous(self) -> bool:
        """Whether the user has to agree to a step."""
        return any(step.dangerous for step in self.steps)


def plan_changes(
    statements: Sequence[st.Statement], definitions: Definitions, vault: Vault, look: TableLook, *, prune: bool = False
) -> DefinitionPlan:
    """Plan what makes the definitions equal to the file. Raises InvalidInput if the file is not valid."""
    return _Planning(definitions, vault, look).plan(statements, prune=prune)


class _Planning:
    """Plans one file."""

    def __init__(self, definitions: Definitions, vault: Vault, look: TableLook) -> None:
        self._definitions = definitions
        self._comparison = Comparison(definitions, vault)
        self._look = look
        self._steps: list[PlanStep] = []
        self._blocked: list[Blocked] = []
        self._notes: list[str] = []
        self._replaced: set[str] = set()
        """Uids of objects that are dropped and created again."""
        self._moved: set[str] = set()
        """Uids of sources that read another topic or folder."""

    def plan(self, statements: Sequence[st.Statement], *, prune: bool) -> DefinitionPlan:
        declared = _declared(statements)
        listed = {found.uid for one in declared if (found := self._existing(one))}
        kinds = list(st.ObjectKind)  # what is below is dropped with everything over it: once
        replacing = sorted(filter(self._is_replaced, declared), key=lambda one: kinds.index(kind_of(one)))
        for one in replacing:
            self._replace(one, declared)
        for one in declared:
            self._compare(one)
        self._refill()
        others = []
        for statement in statements:
            if isinstance(statement, st.Alter | st.Drop):
                self._as_written(statement, declared)
            elif not isinstance(statement, st.Create):
                others.append(statement)
        dropped = self._prune(listed) if prune else set[str]()
        unlisted = [d for d in self._definitions if d.uid not in listed | dropped | self._gone() and not d.owner]
        if not self._blocked:
            self._block_without_order()
        steps = [] if self._blocked else _tested_last(_in_order(self._steps, self._definitions))
        blocked, notes = tuple(self._blocked), tuple(self._notes)
        return DefinitionPlan(tuple(steps), blocked, tuple(unlisted), tuple(others), notes, pruned=prune)

    def _existing(self, statement: st.Create) -> Definition | None:
        return self._definitions.find(statement.name, *spaces(kind_of(statement)))

    # -- one object

    def _compare(self, wanted: st.Create) -> None:
        existing = self._existing(wanted)
        kind, name = kind_of(wanted), wanted.name.name
        if existing is None:
            self._steps.append(PlanStep(kind, name, wanted, (), tuple(effects_of_create(wanted))))
            return
        if wanted.if_not_exists or existing.uid in self._replaced:
            return
        if existing.kind is not kind:
            self._block(existing, [f"~ {existing.kind.value} -> {kind.value}"], "Give it another name in the file.")
            return
        self._note_start_options(existing, wanted)
        for differences in _by_alter(self._comparison.differences(existing, normalise(wanted))):
            alter = differences[0].alter
            if alter is not None:
                self._alter(existing, alter, [one.text for one in differences], wanted)

    def _alter(self, existing: Definition, alter: st.Alter, texts: list[str], wanted: st.Create) -> None:
        effects: list[Effect] = []
        action = alter.action if isinstance(alter, st.AlterSink) else None
        if isinstance(action, st.SetFrom) and isinstance(wanted, st.CreateSink):
            alter, effects = self._set_from(existing, wanted)
        after = altered(existing.statement, alter)
        effects += effects_of_alter(existing.statement, after, alter, existing, self._definitions)
        self._steps.append(PlanStep(existing.kind, existing.name, alter, tuple(texts), tuple(effects)))
        if _moves(existing.statement, alter):
            self._moved.add(existing.uid)

    def _set_from(self, existing: Definition, wanted: st.CreateSink) -> tuple[st.AlterSink, list[Effect]]:
        """SET FROM another source or view; over another input, the positions of the sink mean nothing."""
        there = existing.statement
        if not isinstance(there, st.CreateSink):
            raise TypeError(f"{existing.label} is not a sink")
        _, world, _ = _schedule(self._steps, self._definitions)
        before, views = resolve_source(there, self._definitions)
        after, new_views = resolve_source(wanted, world)
        table = table_of(there)
        if before.input != after.input:
            replaced = f"all rows of table {table} are replaced by those of {wanted.source.name}, in one snapshot"
            alter = st.AlterSink(name=there.name, action=st.SetFrom(wanted.source, _SNAPSHOT))
            return alter, [Effect(replaced, dangerous=True)]
        same = not views and not new_views and before.envelope == after.envelope
        stay = f"rows that table {table} already has are not computed again; WITH (SNAPSHOT = true) does that"
        continues = Effect(f"table {table} continues where it is: both read the same input")
        alter = st.AlterSink(name=there.name, action=st.SetFrom(wanted.source))
        return alter, [continues] if same else [Effect(stay, dangerous=True)]

    def _refill(self) -> None:
        """Let sinks of another topic or folder start over: their positions mean nothing in it."""
        moved = {step.name for step in self._steps if _starts_from(step.statement)}
        for sink in self._definitions.of(st.ObjectKind.SINK):
            statement, below = sink.statement, {d.uid for d in _below(sink, self._definitions)}
            if not isinstance(statement, st.CreateSink) or sink.name in moved or sink.uid in self._replaced:
                continue
            if below & self._moved:
                alter = st.AlterSink(name=statement.name, action=st.SetFrom(statement.source, _SNAPSHOT))
                table = table_of(statement)
                replaced = (
                    f"all rows of table {table} are replaced by those of {statement.source.name}, in one snapshot"
                )
                effects = effects_of_alter(statement, statement, alter, sink, self._definitions)
                step = PlanStep(sink.kind, sink.name, alter, (), (Effect(replaced, dangerous=True), *effects))
                self._steps.append(step)

    def _note_start_options(self, existing: Definition, wanted: st.Create) -> None:
        if not isinstance(wanted, st.CreateSink) or not isinstance(existing.statement, st.CreateSink):
            return
        known = {(option.name, option.value) for option in start_options(existing.statement)}
        new = [option for option in start_options(wanted) if (option.name, option.value) not in known]
        if new:
            names = ", ".join(option.to_sql() for option in new)
            self._notes.append(f"sink {existing.name} exists: {names} acts only when a sink is created")

    # -- DROP and CREATE

    def _is_replaced(self, wanted: st.Create) -> bool:
        existing = self._existing(wanted)
        if existing is None or wanted.if_not_exists or existing.kind is not kind_of(wanted):
            return False
        return any(one.alter is None for one in self._comparison.differences(existing, normalise(wanted)))

    def _replace(self, wanted: st.Create, declared: list[st.Create]) -> None:
        existing = self._existing(wanted)
        if existing is None or existing.uid in self._replaced:
            return
        found = self._comparison.differences(existing, normalise(wanted))
        texts = [one.text for one in found]
        if existing.kind is st.ObjectKind.CONNECTION:
            self._block(existing, texts, "Give the new connection another name in the file.")
            return
        by_uid = {known.uid: one for one in declared if (known := self._existing(one))}
        again = [existing, *self._definitions.dependents(existing.uid)]
        made: list[st.Create] = []
        for one in again:
            statement = by_uid.get(one.uid, one.statement)
            if isinstance(statement, st.CreateSource) and isinstance(one.statement, st.CreateSource):
                statement = _with_known_columns(one.statement, statement, found)
            if isinstance(statement, st.CreateSink):
                changed = {d.what for d in (*found, *self._comparison.differences(one, statement))}
                keeps = existing.kind is st.ObjectKind.SINK or self._keeps_positions(existing, wanted)
                way = self._sink_again(one, statement, changed, {d.uid for d in again}, keeps_positions=keeps)
                if isinstance(way, str):
                    self._block(existing, texts, way)
                    return
                statement = way
            made.append(statement)
        self._replaced |= {one.uid for one in again}
        drop = st.Drop(kind=existing.kind, name=existing.statement.name, cascade=len(again) > 1)
        effects = effects_of_drop([one for one in again if one.kind is st.ObjectKind.SINK])
        danger = Effect("no ALTER changes this: it is dropped and created again", dangerous=True)
        self._steps.append(PlanStep(existing.kind, existing.name, drop, tuple(texts), (danger, *effects)))
        for one, statement in zip(again, made, strict=True):
            own = self._comparison.differences(one, normalise(statement)) if one is not existing else []
            shown = tuple(difference.text for difference in own)
            self._steps.append(PlanStep(one.kind, one.name, statement, shown, tuple(effects_of_create(statement))))
            if one.standing.paused:
                pause = st.AlterSink(name=statement.name, action=st.Pause())
                self._steps.append(PlanStep(one.kind, one.name, pause, (), (Effect(f"sink {one.name} stays paused"),)))

    def _sink_again(
        self, sink: Definition, wanted: st.CreateSink, changed: set[str], dropped: set[str], *, keeps_positions: bool
    ) -> st.CreateSink | str:
        """The statement that creates a sink again after its DROP; a text if there is none, with what to do instead."""
        bare = replace(wanted, options=wanted.options.without(START_OPTIONS), if_not_exists=False)
        there = sink.statement if isinstance(sink.statement, st.CreateSink) else wanted
        moved = not changed.isdisjoint({"catalog", "table"})
        state = self._look(wanted if moved else there, self._definitions)
        if not state.exists:
            return bare
        if moved and start_options(wanted):
            return replace(wanted, if_not_exists=False)
        if moved:
            return (
                f"Table {table_of(wanted)} exists. Say in the file what becomes of its rows: ADOPT = true keeps them, "
                "SNAPSHOT = true replaces them; or choose another table."
            )
        if not changed.isdisjoint({"key", "mode"}) or ("primary key" in changed and not there.key):
            return (
                f"Table {table_of(there)} keeps its key and mode. Write to another TABLE in the file, or drop the "
                "sink, and the table with another tool."
            )
        if sink.uid not in state.sinks:
            return replace(wanted, if_not_exists=False)
        refills = sink.standing.generation > state.sinks[sink.uid]  # it was asked for, and has not happened yet
        if not keeps_positions or refills:
            return replace(bare, options=bare.options.updated(_SNAPSHOT))
        free = state.sinks.keys() - ({d.uid for d in self._definitions} - dropped)
        return _resumed(sink, wanted, alone=len(free) == 1)

    def _keeps_positions(self, changed: Definition, new: st.Create) -> bool:
        """Whether positions in the former source are positions in the new one."""
        if not isinstance(changed.statement, st.CreateSource) or not isinstance(new, st.CreateSource):
            return True
        _, world, _ = _schedule(self._steps, self._definitions)
        return _place(plan_source(changed.statement, self._definitions)) == _place(plan_source(normalise(new), world))

    def _block(self, existing: Definition, texts: list[str], way: str) -> None:
        self._replaced.add(existing.uid)
        self._blocked.append(Blocked(existing.kind, existing.name, tuple(texts), way))

    def _block_without_order(self) -> None:
        """Refuse options that are valid together, but neither if they are set first nor if others are reset first."""
        done, world, error = _schedule(self._steps, self._definitions)
        if error is None:
            return
        pairs: dict[str, list[PlanStep]] = {}
        for step in self._steps:
            action = getattr(step.statement, "action", None)
            if isinstance(action, st.SetOptions | st.ResetOptions) and not any(step is one for one in done):
                pairs.setdefault(f"{step.kind} {step.name}", []).append(step)
        for pair in pairs.values():
            existing = world.find(Identifier.exact(pair[0].name), pair[0].kind)
            if existing is None or len(pair) == 1:
                continue
            changed = existing.statement
            for step in pair:
                changed = altered(changed, step.statement) if isinstance(step.statement, st.Alter) else changed
            try:
                _checked(replace(existing, statement=normalise(changed)), world, columns=False)
            except CalveError:
                continue  # not valid together either: that error is reported
            way = (
                "These options need or exclude each other, so that no order of SET and RESET is valid. Give the new "
                f"{existing.kind.value.lower()} another name in the file."
            )
            self._block(existing, [text for step in pair for text in step.differences], way)

    # -- ALTER and DROP in the file, objects that are not in it

    def _as_written(self, statement: st.Alter | st.Drop, declared: list[st.Create]) -> None:
        """A statement of the file that changes an object which the file does not create."""
        kind = statement.kind if isinstance(statement, st.Drop) else ALTERED[type(statement)]
        found = self._definitions.find(statement.name, kind)
        if isinstance(statement, st.Drop):
            if found is None and not statement.if_exists:
                required(self._definitions, statement.name, kind)
            if found is not None:
                gone = [found, *self._definitions.dependents(found.uid)] if statement.cascade else [found]
                effects = tuple(replace(one, dangerous=False) for one in effects_of_drop(gone))
                self._steps.append(PlanStep(kind, found.name, statement, (), effects))
            return
        if found is None:
            made_here = any(kind_of(one) is kind and statement.name.matches(one.name.name) for one in declared)
            if made_here or not statement.if_exists:
                _ = made_here or required(self._definitions, statement.name, kind)
                self._steps.append(PlanStep(kind, statement.name.name, statement))
            return
        if altered(found.statement, statement) != found.statement or _changes_standing(found, statement):
            after = altered(found.statement, statement)
            expected = effects_of_alter(found.statement, after, statement, found, self._definitions)
            harmless = tuple(replace(one, dangerous=False) for one in expected)
            self._steps.append(PlanStep(kind, found.name, statement, (), harmless))

    def _prune(self, listed: set[str]) -> set[str]:
        """Drop what the file does not create, unless something in the file needs it; returns what is dropped."""
        _, world, _ = _schedule(self._steps, self._definitions)
        there = {d.uid for d in self._definitions}
        wanted = {d.uid for d in world if d.uid in there - listed and not d.owner}
        used_by = {uid: {d.uid for d in world.dependents(uid)} for uid in wanted}
        wanted -= {uid for uid in wanted if used_by[uid] - wanted}
        for one in sorted(self._definitions, key=lambda d: -list(st.ObjectKind).index(d.kind)):
            if one.uid in wanted:
                drop = st.Drop(kind=one.kind, name=one.statement.name)
                effects = tuple(effects_of_drop([one]))
                self._steps.append(PlanStep(one.kind, one.name, drop, ("- not in the file",), effects))
        return wanted

    def _gone(self) -> set[str]:
        """Uids of what the file itself drops."""
        dropped = [step.statement for step in self._steps if isinstance(step.statement, st.Drop)]
        found = [d for drop in dropped if (d := self._definitions.find(drop.name, drop.kind))]
        again = self._replaced
        return {one.uid for d in found for one in (d, *self._definitions.dependents(d.uid)) if one.uid not in again}


_SNAPSHOT = Options((Option(SinkOptions.SNAPSHOT.name, value=True),))
_UNTESTED = Options((Option(ConnectionStatementOptions.VALIDATE.name, value=False),))
_RESUME = Options((Option(SinkOptions.RESUME.name, value=True),))


def _resumed(sink: Definition, wanted: st.CreateSink, *, alone: bool) -> st.CreateSink | str:
    """The sink that continues where it was dropped; a text if its table has other dropped sinks, so that it cannot."""
    bare = replace(wanted, options=wanted.options.without(START_OPTIONS), if_not_exists=False)
    if alone:
        return replace(bare, options=bare.options.updated(_RESUME))
    if catalogue.SINK.check(wanted.options, None).get(SinkOptions.SNAPSHOT):
        return replace(bare, options=bare.options.updated(_SNAPSHOT))
    return (
        f"Table {table_of(wanted)} holds the progress of several dropped sinks then, so that sink {sink.name} could "
        "not continue. Say SNAPSHOT = true in its CREATE SINK to refill the table, or leave this as it is."
    )


def _declared(statements: Sequence[st.Statement]) -> list[st.Create]:
    """The objects of a file, each once. Raises SqlError for a file that contradicts itself."""
    found: list[st.Create] = []
    for statement in statements:
        if isinstance(statement, st.Create):
            check_name(statement.name.name, f"a {kind_of(statement).value.lower()}")
            other = _named(found, statement.name, spaces(kind_of(statement)))
            if other is None:
                found.append(statement)
            elif replace(normalise(other), name=statement.name) != normalise(statement):
                raise SqlError.at(
                    statement.name.where,
                    f'the file creates {kind_of(other).value.lower()} "{other.name}" twice',
                    hint="Keep one of the statements.",
                )
    for statement in statements:
        if isinstance(statement, st.Drop) or (isinstance(statement, st.Alter) and _defines(statement)):
            kind = statement.kind if isinstance(statement, st.Drop) else ALTERED[type(statement)]
            if _named(found, statement.name, frozenset({kind})) is not None:
                word = "drops" if isinstance(statement, st.Drop) else "alters"
                raise SqlError.at(
                    statement.name.where,
                    f'the file creates and {word} {kind.value.lower()} "{statement.name}"',
                    hint="Write CREATE as it should be, and leave the other statement out: calve plan finds the way.",
                )
    return found


def _named(found: Iterable[st.Create], name: Identifier, kinds: frozenset[st.ObjectKind]) -> st.Create | None:
    return next((one for one in found if kind_of(one) in kinds and one.name.collides(name)), None)


def _defines(statement: st.Alter) -> bool:
    """Whether an ALTER changes a definition, and not only the state of a sink."""
    return not (
        isinstance(statement, st.AlterSink) and isinstance(statement.action, st.Pause | st.Resume | st.AcceptSnapshot)
    )


def _changes_standing(found: Definition, statement: st.Alter) -> bool:
    action = statement.action if isinstance(statement, st.AlterSink) else None
    match action:
        case st.Pause():
            return not found.standing.paused
        case st.Resume():
            return found.standing.paused
        case st.AcceptSnapshot(snapshot_id):
            return found.standing.accepted_snapshot != snapshot_id
        case _:
            return False


def _by_alter(differences: list[Difference]) -> list[list[Difference]]:
    """The differences that one ALTER closes together."""
    found: dict[str, list[Difference]] = {}
    for one in differences:
        found.setdefault(one.alter.to_sql() if one.alter else "", []).append(one)
    return list(found.values())


def _moves(before: st.Create, alter: st.Alter) -> bool:
    """Whether a source reads another topic or folder after an ALTER."""
    action = alter.action if isinstance(alter, st.AlterSource) else None
    if not isinstance(action, st.SetOptions) or not isinstance(before, st.CreateSource):
        return False
    if action.options.find(KafkaSourceOptions.TOPIC.name) is not None:
        return True
    was, now = (str(one.value(FilesOptions.PATH.name) or "") for one in (before.input.options, action.options))
    return bool(now) and folder_of(was) != folder_of(now)


def _with_known_columns(
    there: st.CreateSource, wanted: st.CreateSource, differences: list[Difference]
) -> st.CreateSource:
    """The source with the columns that were inferred for it, if it still has the same records in the same shape."""

    def records(source: st.CreateSource) -> list[object]:
        options = source.input.options
        named = (FilesOptions.PATH.name, FilesOptions.FORMAT.name, KafkaSourceOptions.TOPIC.name)
        shaped = source.envelope if isinstance(source.envelope, parts.DiffEnvelope) else None
        return [isinstance(source.envelope, parts.DebeziumEnvelope), shaped, *(options.value(name) for name in named)]

    others = not {"input", "format"}.isdisjoint(one.what for one in differences)
    if not wanted.infer or others or records(there) != records(normalise(wanted)):
        return wanted
    return with_inferred(there, wanted)


def _starts_from(statement: st.Statement) -> bool:
    return isinstance(statement, st.AlterSink) and isinstance(statement.action, st.SetFrom)


def _below(definition: Definition, definitions: Definitions) -> list[Definition]:
    """Everything that an object refers to, directly or indirectly."""
    uids = [uid for uid, _ in definitions.fingerprint(definition)]
    return [d for uid in uids if (d := definitions.by_uid(uid)) and d.uid != definition.uid]


def _place(source: SourcePlan) -> object:
    """What positions of a source refer to."""
    match source.input:
        case FilesInput(path=path):
            return folder_of(path)
        case KafkaInput(connection=connection, topic=topic):
            return connection, topic
        case GeneratorInput(rows=rows, changes=changes, seed=seed):
            return rows, changes, seed
        case TableInput(connection=connection, table=table):
            return connection, table


# ---------------------------------------------------------------------------------------------------------------- order


def _in_order(steps: Sequence[PlanStep], definitions: Definitions) -> list[PlanStep]:
    """The steps in an order in which each is valid after those before it: that of the file, where it can be.

    Raises the error of the first step that is valid in no order.
    """
    found, _, error = _schedule(steps, definitions)
    if error is not None:
        raise error
    return found


def _tested_last(steps: list[PlanStep]) -> list[PlanStep]:
    """The steps, where only the last ALTER of a connection tests it: before, it may lack its login."""
    found: list[PlanStep] = []
    for number, step in enumerate(steps):
        later = {one.name for one in steps[number + 1 :] if isinstance(one.statement, st.AlterConnection)}
        if isinstance(step.statement, st.AlterConnection) and step.name in later:
            found.append(replace(step, statement=replace(step.statement, settings=_UNTESTED)))
        else:
            found.append(step)
    return found


def _schedule(
    steps: Sequence[PlanStep], definitions: Definitions
) -> tuple[list[PlanStep], Definitions, CalveError | None]:
    """Steps in a valid order, the definitions after them, and the first error of those that are valid in none."""
    found, waiting, world = list[PlanStep](), list(steps), definitions
    while waiting:
        first: CalveError | None = None
        for step in waiting:
            try:
                world = _after(step.statement, world)
            except CalveError as error:
                first = first or error
            else:
                found.append(step)
                waiting.remove(step)
                break
        else:
            return found, world, first
    return found, world, None


def _after(statement: st.Statement, world: Definitions) -> Definitions:
    """The definitions after a statement, checked without Spark and catalogs. Raises InvalidInput."""
    match statement:
        case st.Create():
            return _after_create(normalise(statement), world)
        case st.Alter():
            found = required(world, statement.name, ALTERED[type(statement)])
            changed = altered(found.statement, statement)
            return _checked(replace(found, statement=normalise(changed)), world, columns=_new_columns(found, changed))
        case st.Drop():
            found = required(world, statement.name, statement.kind)
            dependents = world.dependents(found.uid)
            if dependents and not statement.cascade:
                raise in_use(statement.name, found, dependents)
            gone = {found.uid, *(d.uid for d in dependents)}
            return Definitions(d for d in world if d.uid not in gone and d.owner not in gone)
        case _:
            return world


def _after_create(statement: st.Create, world: Definitions) -> Definitions:
    kind = kind_of(statement)
    taken = world.find(statement.name, *spaces(kind))
    if taken is not None:
        raise SqlError.at(statement.name.where, f"{taken.label} already exists")
    return _checked(Definition(f"new {kind.value} {statement.name.name}", 1, statement), world, columns=False)


def _new_columns(found: Definition, changed: st.Create) -> bool:
    there = found.statement
    return (
        isinstance(there, st.CreateSource)
        and isinstance(changed, st.CreateSource)
        and bool(column_changes(there, changed))
    )


def _checked(given: Definition, world: Definitions, *, columns: bool) -> Definitions:
    """The definitions with a new or changed one, if it is valid; with `columns`, if the sinks that read it are."""
    others, one = [d for d in world if d.uid != given.uid], given
    if isinstance(given.statement, st.CreateConnection):
        ids = count()
        hidden = hide_literals(given.statement, given.uid, lambda: f"new secret {given.name} {next(ids)}")
        one = replace(given, statement=hidden.statement)
        made = {d.name for d in hidden.secrets}
        others = [*(d for d in others if not (d.owner == given.uid and d.name in made)), *hidden.secrets]
    before = Definitions(others)
    one = replace(one, uses=_uses(one.statement, before))
    after = Definitions([*others, one])
    _check(one, after)
    if columns:
        for dependent in after.dependents(one.uid):
            if dependent.kind is st.ObjectKind.SINK:
                _check(dependent, after)
    return after


def _uses(statement: st.Create, world: Definitions) -> tuple[str, ...]:
    match statement:
        case st.CreateConnection():
            return uses_of_connection(statement, world)
        case st.CreateSource():
            return uses_of_source(statement, world)
        case st.CreateSink():
            return uses_of_sink(statement, world)
        case st.CreateView():
            words = [word.strip('`"').lower() for word in words_of(statement.query)]
            after = {word for before, word in pairwise(words) if before in {"from", "join"}}
            return tuple(d.uid for d in world.of(*RELATIONS) if d.name.lower() in after)
        case _:
            return ()


def _check(one: Definition, world: Definitions) -> None:
    match one.statement:
        case st.CreateConnection():
            plan_connection(one.statement, world)
        case st.CreateSource():
            plan_source(one.statement, world)
        case st.CreateSink():
            if not _is_over_unknown_columns(one, world):
                plan_sink(one, world)
        case _:
            return


def _is_over_unknown_columns(sink: Definition, world: Definitions) -> bool:
    """Whether a sink reads a view whose input only Spark can tell, or a source whose columns are yet to be inferred."""
    read = [d for uid in sink.uses if (d := world.by_uid(uid)) and d.kind in RELATIONS]
    while read and read[0].kind is st.ObjectKind.VIEW:
        read = [d for uid in read[0].uses if (d := world.by_uid(uid)) and d.kind in RELATIONS]
    return not read or (isinstance(read[0].statement, st.CreateSource) and read[0].statement.infer)
