"""Definitions in the metastore of a home folder.

An edit reads all definitions, plans its changes, and applies them atomically to all components that it touches, if none
of the five changed in between; otherwise it starts over. Watchers compare `revision` to notice edits.
"""

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calve.catalog.failures import trying
from calve.clock import SystemClock
from calve.definitions.copies import NAMESPACE, DefinitionsCopy
from calve.definitions.objects import COMPONENTS, ConcurrentEdit, Definition, spaces
from calve.definitions.units import DefinitionUnit, Placed, calve_views, partition_of
from calve.errors import CommitConflict, InvalidInput, TransientError
from calve.iceberg.small_tables.partition_files import TableVersion
from calve.metastore.component import Component, see_together
from calve.metastore.config import MetastoreConfig
from calve.metastore.metastore import Metastore
from calve.metastore.modify import Modify, execute_together
from calve.metastore.views import ViewUnit
from calve.retry import retry_on
from calve.sql.statements import ObjectKind

ATTEMPTS = 100
"""Of reads and edits that conflict with others."""


@dataclass(frozen=True)
class _Look:
    """All definitions at one moment."""

    seen: Mapping[ObjectKind, TableVersion]
    found: tuple[Placed, ...]

    def by_uid(self, uid: str) -> Placed | None:
        return next((one for one in self.found if one.definition.uid == uid), None)


class _Edit:
    """The changes of one edit, checked as they are added."""

    def __init__(self, look: _Look, components: Mapping[ObjectKind, Component[Any]], now_ms: int) -> None:
        self._look = look
        self._known = list(look.found)
        self._components = components
        self._now_ms = now_ms
        self._changes: dict[ObjectKind, Modify[Any]] = {}

    def insert(self, definition: Definition) -> None:
        """Raises InvalidInput if the name is taken."""
        wanted, kinds = definition.statement.name, spaces(definition.kind)
        for one in self._known:
            there = one.definition
            if there.kind in kinds and (wanted.matches(there.name) or there.name.lower() == wanted.name.lower()):
                kind = there.kind.value
                raise InvalidInput(
                    f'{kind.lower()} "{there.name}" already exists', hint=f"Use ALTER {kind}, or another name."
                )
        self._put(Placed(definition, max((one.position for one in self._known), default=0) + 1))

    def update(self, changed: Definition, following: Definition) -> None:
        """Raises ConcurrentEdit if the definition changed since it was read."""
        there = self._as_read(changed)
        self._remove(there)
        self._put(Placed(following, there.position))

    def delete(self, definition: Definition) -> None:
        """Raises ConcurrentEdit if the definition changed since it was read."""
        self._remove(self._as_read(definition))

    def execute(self) -> None:
        """Raises CommitConflict if anything changed in between."""
        if self._changes:
            others = [seen for kind, seen in self._look.seen.items() if kind not in self._changes]
            execute_together(list(self._changes.values()), unchanged=others)

    def _as_read(self, definition: Definition) -> Placed:
        there = self._look.by_uid(definition.uid)
        if there is None or there.definition.version != definition.version:
            raise _edited(definition)
        return there

    def _put(self, placed: Placed) -> None:
        self._known.append(placed)
        self._change(placed.definition.kind).overwrite(placed.to_unit(self._now_ms))

    def _remove(self, placed: Placed) -> None:
        self._known.remove(placed)
        self._change(placed.definition.kind).delete(partition_of(placed.definition))

    def _change(self, kind: ObjectKind) -> Modify[Any]:
        if kind not in self._changes:
            self._changes[kind] = self._components[kind].modify().expecting(self._look.seen[kind])
        return self._changes[kind]


class MetastoreDefinitions:
    """The store of a home folder. It is always inside it, wherever the configuration puts other components."""

    def __init__(self, home: Path, environment: Mapping[str, str] | None = None) -> None:
        self._home = home
        self._environment = os.environ if environment is None else environment
        self._clock = SystemClock()
        self._opening = threading.Lock()
        self._opened: Mapping[ObjectKind, Component[Any]] | None = None

    @property
    def revision(self) -> int:
        return sum(seen.version for seen in see_together(list(self._components().values())))

    def all(self) -> list[Definition]:
        return list(self.copy().definitions)

    def copy(self) -> DefinitionsCopy:
        """All definitions at one moment, with what identifies it."""
        look = self._look(self._components())
        moments = {COMPONENTS[kind]: seen.moment for kind, seen in look.seen.items()}
        return DefinitionsCopy(moments, tuple(one.definition for one in look.found))

    def create(self, definitions: Iterable[Definition]) -> None:
        given = list(definitions)

        def plan(edit: _Edit) -> None:
            for definition in given:
                edit.insert(definition)

        self._edit(plan, self._components())

    def replace(self, changed: Definition, added: Iterable[Definition] = ()) -> Definition:
        following, given = replace(changed, version=changed.version + 1), list(added)

        def plan(edit: _Edit) -> None:
            for definition in given:
                edit.insert(definition)
            edit.update(changed, following)

        self._edit(plan, self._components())
        return following

    def drop(self, definitions: Iterable[Definition]) -> None:
        given = list(definitions)

        def plan(edit: _Edit) -> None:
            for definition in given:
                edit.delete(definition)

        self._edit(plan, self._components())

    def _edit(self, plan: Callable[[_Edit], None], components: Mapping[ObjectKind, Component[Any]]) -> None:
        def attempt() -> None:
            edit = _Edit(self._look(components), components, self._clock.now_ms())
            plan(edit)
            edit.execute()

        try:
            retry_on(CommitConflict, ATTEMPTS, attempt)
        except CommitConflict as error:
            raise _overtaken("changed") from error

    def _look(self, components: Mapping[ObjectKind, Component[Any]]) -> _Look:
        """Read all components at one moment."""

        def attempt() -> _Look:
            seen = dict(zip(components, see_together(list(components.values())), strict=True))
            units = [unit for kind, one in components.items() for unit in _read(kind, one, seen[kind])]
            return _Look(seen, tuple(sorted((Placed.of(unit) for unit in units), key=lambda one: one.position)))

        with trying("reading the definitions"):
            try:  # a version may expire before it is read
                return retry_on(FileNotFoundError, ATTEMPTS, attempt)
            except FileNotFoundError as error:
                raise _overtaken("read") from error

    def _components(self) -> Mapping[ObjectKind, Component[Any]]:
        with self._opening:
            if self._opened is None:
                config = MetastoreConfig.load(self._home, self._environment)
                metastore = Metastore(replace(config, base_path=str(self._home), catalog={}, namespace=NAMESPACE))
                components: dict[ObjectKind, Component[Any]] = {
                    kind: metastore.component(name, ViewUnit if kind is ObjectKind.VIEW else DefinitionUnit)
                    for kind, name in COMPONENTS.items()
                }
                self._opened = components
            return self._opened


def _read(kind: ObjectKind, component: Component[Any], seen: TableVersion) -> list[Any]:
    return component.read_at(seen, where=calve_views() if kind is ObjectKind.VIEW else None)


def _overtaken(what: str) -> TransientError:
    return TransientError(
        f"the definitions could not be {what}",
        detail=f"Other processes changed them {ATTEMPTS} times in between.",
        hint="Retry.",
    )


def _edited(definition: Definition) -> ConcurrentEdit:
    return ConcurrentEdit(
        f"another process changed {definition.label}",
        detail=f"This one read version {definition.version}.",
        hint="Check it with SHOW CREATE, and retry.",
    )
