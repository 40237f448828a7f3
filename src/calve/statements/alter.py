"""ALTER and DROP. An ALTER without effect stores nothing, so that no sink restarts because of it."""

from dataclasses import replace
from typing import TypeVar

from calve.definitions.objects import Definition
from calve.definitions.store import Definitions
from calve.definitions.vault import KEPT, is_kept
from calve.definitions.workplace import Workplace
from calve.errors import InvalidInput
from calve.model.checkpoint import RowKind
from calve.plan import catalogue
from calve.plan.alterations import ALTERED, altered_options
from calve.plan.connections import plan_connection, uses_of_connection, wants_validation
from calve.plan.declared import hide_literals, normalise
from calve.plan.lookup import in_use, required
from calve.plan.sinks import SinkPlan, plan_sink, resolve_source, uses_of_sink
from calve.plan.sources import plan_source
from calve.sql import parts, statements
from calve.sql import statements as st
from calve.sql.errors import SqlError
from calve.sql.names import Identifier, in_parentheses
from calve.sql.options import SecretName
from calve.statements.answers import TextAnswer
from calve.statements.create import check_source
from calve.watch.status_files import forget_status

S = TypeVar("S", bound=st.Create)


def alter(place: Workplace, statement: st.Alter) -> TextAnswer:
    """Alter an object."""
    kind = ALTERED[type(statement)]
    definitions = place.definitions()
    if statement.if_exists and definitions.find(statement.name, kind) is None:
        return TextAnswer(f'there is no {kind.value.lower()} "{statement.name}"')
    found = required(definitions, statement.name, kind)
    match statement:
        case st.AlterSecret():
            return _secret(place, found, statement.origin)
        case st.AlterConnection():
            return _connection(place, found, statement, definitions)
        case st.AlterSource():
            return _source(place, found, statement, definitions)
        case st.AlterView():
            return _view(place, found, statement, definitions)
        case st.AlterSink():
            return _Sink(place, found, definitions).alter(statement.action)
        case _:
            raise TypeError(type(statement).__name__)


def drop(place: Workplace, statement: st.Drop) -> TextAnswer:
    """Drop an object; with CASCADE also its dependents."""
    definitions = place.definitions()
    found = definitions.find(statement.name, statement.kind)
    if found is None and statement.if_exists:
        return TextAnswer(f'there is no {statement.kind.value.lower()} "{statement.name}"')
    found = found or required(definitions, statement.name, statement.kind)
    dependents = definitions.dependents(found.uid)
    if dependents and not statement.cascade:
        raise in_use(statement.name, found, dependents)
    gone = [*reversed(dependents), found]
    uids = {d.uid for d in gone}
    gone += [d for d in definitions if d.owner in uids and d.uid not in uids]
    place.store.drop(gone)
    for definition in gone:
        if is_kept(definition):
            place.vault.forget(definition.uid)
        if definition.kind is st.ObjectKind.SINK:
            forget_status(place.home, definition.name)
    return TextAnswer("dropped " + ", ".join(d.label for d in gone if not d.owner or d is found))


def _store_change(place: Workplace, found: Definition, changed: Definition) -> TextAnswer:
    if changed == found:
        return TextAnswer(f"{found.label} is unchanged")
    place.store.replace(changed)
    return TextAnswer(f"altered {found.label}")


def _statement(found: Definition, kind: type[S]) -> S:
    if not isinstance(found.statement, kind):
        raise TypeError(f"{found.label} is stored as {type(found.statement).__name__}")
    return found.statement


def _secret(place: Workplace, found: Definition, origin: parts.SecretOrigin) -> TextAnswer:
    statement = _statement(found, st.CreateSecret)
    if not isinstance(origin, parts.FromLiteral):
        message = _store_change(place, found, replace(found, statement=replace(statement, origin=origin)))
        place.vault.forget(found.uid)
        return message
    text = origin.value.reveal()
    if is_kept(found) and place.vault.kept(found.uid) == text:
        return TextAnswer(f"{found.label} is unchanged")
    place.vault.keep(found.uid, text)
    place.store.replace(replace(found, statement=replace(statement, origin=parts.FromFile(f"{KEPT}{found.uid}"))))
    return TextAnswer(f"altered {found.label}")


def _connection(place: Workplace, found: Definition, given: st.AlterConnection, definitions: Definitions) -> TextAnswer:
    statement = _statement(found, st.CreateConnection)
    altered = replace(altered_options(statement, given.action), settings=given.settings)
    hidden = hide_literals(altered, found.uid, place.ids.new_id)
    wanted = hidden.statement
    made = {d.name for d in hidden.secrets}
    named = {option.value.name.name for option in wanted.options if isinstance(option.value, SecretName)}
    stale = [d for d in definitions if d.owner == found.uid and (d.name in made or d.name not in named)]
    known = Definitions([*(d for d in definitions if d not in stale), *hidden.secrets])
    plan_connection(wanted, known)
    for uid, text in hidden.texts.items():
        place.vault.keep(uid, text)
    try:
        if wants_validation(wanted):
            from calve.statements.probing import try_connection

            try_connection(place, wanted, known)
        stored = replace(found, statement=replace(wanted, settings=statement.settings))
        stored = replace(stored, uses=uses_of_connection(wanted, known))
        if not hidden.secrets and not stale:
            return _store_change(place, found, stored)
        place.store.replace(stored, hidden.secrets, stale)
    except BaseException:
        for uid in hidden.texts:
            place.vault.forget(uid)
        raise
    for definition in stale:
        place.vault.forget(definition.uid)
    return TextAnswer(f"altered {found.label}")


def _source(place: Workplace, found: Definition, given: st.AlterSource, definitions: Definitions) -> TextAnswer:
    statement = _statement(found, st.CreateSource)
    if isinstance(given.action, statements.SetColumns):
        _check_same_key(statement, given.action.primary_key)
        return _columns(place, found, replace(statement, columns=given.action.columns), definitions)
    wanted = normalise(altered_options(statement, given.action))
    check_source(place, wanted, definitions)
    return _store_change(place, found, replace(found, statement=wanted))


def _check_same_key(statement: st.CreateSource, key: tuple[Identifier, ...]) -> None:
    """Refuse a changed key; SET COLUMNS may only repeat it. Raises SqlError."""
    before = statement.primary_key
    if key and (len(key) != len(before) or not all(ours.collides(was) for ours, was in zip(key, before, strict=True))):
        raise SqlError.at(
            key[0].where,
            "the primary key of a source cannot be changed",
            hint=f"It is {in_parentheses(before)}: repeat it, or leave PRIMARY KEY out." if before else "Leave it out.",
        )


def _columns(place: Workplace, found: Definition, wanted: st.CreateSource, definitions: Definitions) -> TextAnswer:
    """Change the columns of a source, if the sinks that read it directly remain valid."""
    plan_source(wanted, definitions)
    changed = replace(found, statement=wanted)
    after = Definitions([changed if d.uid == found.uid else d for d in definitions])
    for dependent in definitions.dependents(found.uid):
        if dependent.kind is st.ObjectKind.SINK:
            plan_sink(dependent, after)
    return _store_change(place, found, changed)


def _view(place: Workplace, found: Definition, given: st.AlterView, definitions: Definitions) -> TextAnswer:
    wanted = replace(_statement(found, st.CreateView), query=given.query)
    from calve.statements.views import plan_view

    planned = plan_view(place, wanted, definitions)
    below = {found.uid, *(d.uid for d in definitions.dependents(found.uid))}
    if below & set(planned.uses):
        raise SqlError.at(given.where, f"{found.label} would read itself")
    return _store_change(place, found, replace(found, statement=wanted, uses=planned.uses))


class _Sink:
    """Alters one sink. It keeps its progress: the definition's version grows and fences runs of older ones."""

    def __init__(self, place: Workplace, found: Definition, definitions: Definitions) -> None:
        self._place = place
        self._found = found
        self._definitions = definitions
        self._create = _statement(found, st.CreateSink)

    def alter(self, action: statements.SinkAction) -> TextAnswer:
        found, standing = self._found, self._found.standing
        match action:
            case statements.SetOptions() | statements.ResetOptions():
                return self._to(replace(found, statement=altered_options(self._create, action)))
            case statements.SetFrom():
                return self._to(self._from(action))
            case statements.SetPartitioning(fields):
                standing = replace(standing, unpartitioned=not fields)
                wanted = replace(self._create, partition_by=fields)
                return self._to(replace(found, statement=wanted, standing=standing))
            case statements.Pause():
                answer = self._to(replace(found, standing=replace(standing, paused=True)))
                from calve.pipeline.monitor import report_paused

                report_paused(self._place.home, found.name)
                return answer
            case statements.Resume():
                answer = self._to(replace(found, standing=replace(standing, paused=False)))
                from calve.pipeline.monitor import report_resumed

                report_resumed(self._place.home, found.name)
                return answer
            case statements.AcceptSnapshot(snapshot_id):
                return self._to(replace(found, standing=replace(standing, accepted_snapshot=snapshot_id)))

    def _to(self, changed: Definition) -> TextAnswer:
        plan = plan_sink(replace(changed, version=changed.version + 1), self._definitions)
        if changed.statement != self._found.statement:
            if plan.views:
                from calve.statements.views import check_sinks_view

                check_sinks_view(self._place, plan)
            self._check_waiting(plan)
            self._check_format(plan)
        return _store_change(self._place, self._found, changed)

    def _check_waiting(self, plan: SinkPlan) -> None:
        """Refuse changes that staged rows depend on, unless everything is read again anyway."""
        before = plan_sink(self._found, self._definitions)
        was, now = RowKind.of(before.spec), RowKind.of(plan.spec)
        if was.fixed == now.fixed or plan.spec.generation > before.spec.generation:
            return
        from calve.commit.journal import Journal
        from calve.commit.waiting import check_change
        from calve.pipeline.lakes import lake_of

        lake = lake_of(self._place.home, before.catalog, before.store, self._definitions, self._place.vault)
        records = Journal(lake.state(before.state, self._found.uid)).newest()
        check_change(records, was, now, self._found.name)

    def _check_format(self, plan: SinkPlan) -> None:
        """Refuse a format version that the table neither has nor can be upgraded to."""
        spec, before = plan.spec, plan_sink(self._found, self._definitions).spec
        if (spec.table_format, spec.format_version) in {(None, None), (before.table_format, before.format_version)}:
            return
        from calve.iceberg.loading import check_format, load_table_or_none
        from calve.pipeline.lakes import lake_of

        lake = lake_of(self._place.home, plan.catalog, plan.store, self._definitions, self._place.vault)
        table = load_table_or_none(lake.open(), spec.table)
        if table is not None:
            check_format(table, spec.table_format, spec.table, self._found.uid if spec.format_version else None)

    def _from(self, action: statements.SetFrom) -> Definition:
        found = self._found
        given = catalogue.SINK.check(action.options, None)
        for option in given:
            if option is not catalogue.SinkOptions.SNAPSHOT:
                raise given.error(option, "SET FROM takes only the option SNAPSHOT", "Use SET (...) for the others.")
        wanted = replace(self._create, source=action.source)
        changed = replace(found, statement=wanted, uses=uses_of_sink(wanted, self._definitions))
        if given.get(catalogue.SinkOptions.SNAPSHOT):
            return replace(changed, standing=replace(found.standing, generation=found.version + 1))
        before, _ = resolve_source(self._create, self._definitions)
        after, _ = resolve_source(wanted, self._definitions)
        if before.input != after.input:
            raise InvalidInput(
                f"{found.label} cannot continue with another source",
                detail=f'It reads "{before.relation.name}", and "{after.relation.name}" has other positions.',
                hint="Write SET FROM ... WITH (SNAPSHOT = true): it makes the table equal to the new source.",
            )
        return changed
