"""Definitions in the metastore of a home folder.

An edit reads all definitions, with the pending edits, plans its changes, and applies them atomically to all components
that they touch, if none of the five changed in between; otherwise it starts over. Then nothing is pending.
"""

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calve.catalog.failures import trying
from calve.clock import SystemClock
from calve.definitions.copies import DefinitionsCopy
from calve.definitions.edits import Steps, created, dropped, replaced
from calve.definitions.objects import COMPONENTS, Definition
from calve.definitions.pending import NAMESPACE, PendingEdits, PendingState
from calve.definitions.units import DefinitionUnit, Placed, calve_views, partition_of
from calve.errors import CommitConflict, TransientError
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

Plan = Callable[[Sequence[Definition]], list[Definition]]
"""What the definitions become."""


@dataclass(frozen=True)
class _Look:
    """All definitions at one moment."""

    seen: Mapping[ObjectKind, TableVersion]
    stored: tuple[Placed, ...]
    """Those of the metastore."""
    pending: PendingState

    @property
    def copy(self) -> DefinitionsCopy:
        metadata = {COMPONENTS[kind]: seen.moment for kind, seen in self.seen.items()}
        return DefinitionsCopy(metadata, tuple(one.definition for one in self.stored))

    @property
    def definitions(self) -> list[Definition]:
        return self.pending.applied([one.definition for one in self.stored])

    def store(self, after: Sequence[Definition], components: Mapping[ObjectKind, Component[Any]], now_ms: int) -> None:
        """Store what the definitions have become. Raises CommitConflict if anything changed in between."""
        changes: dict[ObjectKind, Modify[Any]] = {}

        def change(kind: ObjectKind) -> Modify[Any]:
            if kind not in changes:
                changes[kind] = components[kind].modify().expecting(self.seen[kind])
            return changes[kind]

        places = {one.definition.uid: one for one in self.stored}
        following = max((one.position for one in self.stored), default=0) + 1
        steps = Steps.between([one.definition for one in self.stored], after)
        gone = {*steps.removed, *(one.uid for one in steps.put if one.uid in places)}
        for one in (places[uid].definition for uid in places if uid in gone):
            change(one.kind).delete(partition_of(one))
        for number, one in enumerate(steps.put, following):
            position = places[one.uid].position if one.uid in places else number
            change(one.kind).overwrite(Placed(one, position).to_unit(now_ms))
        if changes:
            others = [seen for kind, seen in self.seen.items() if kind not in changes]
            execute_together(list(changes.values()), unchanged=others)


class MetastoreDefinitions:
    """The store of a home folder. It is always inside it, wherever the configuration puts other components."""

    def __init__(self, home: Path, environment: Mapping[str, str] | None = None) -> None:
        self._home = home
        self._environment = os.environ if environment is None else environment
        self._clock = SystemClock()
        self._opening = threading.Lock()
        self._opened: Mapping[ObjectKind, Component[Any]] | None = None
        self._pending = PendingEdits(home, self._environment)

    @property
    def revision(self) -> str:
        return self._pending.read().revision

    def all(self) -> list[Definition]:
        return self._look(self._components()).definitions

    def copy_for(self, home: Path) -> list[Definition]:
        """All definitions; those of the metastore are copied, to read them faster the next time."""
        look = self._look(self._components())
        look.copy.write(home)
        return look.definitions

    def create(self, definitions: Iterable[Definition], gone: Iterable[Definition] = ()) -> None:
        given, left = list(definitions), list(gone)
        self.edit(lambda known: created(dropped(known, left), given))

    def replace(
        self, changed: Definition, added: Iterable[Definition] = (), gone: Iterable[Definition] = ()
    ) -> Definition:
        given, left = list(added), list(gone)
        self.edit(lambda known: replaced(known, changed, given, left))
        return replace(changed, version=changed.version + 1)

    def drop(self, definitions: Iterable[Definition]) -> None:
        given = list(definitions)
        self.edit(lambda known: dropped(known, given))

    def settle(self) -> None:
        if self._pending.read().edits:
            self.edit(list)

    def edit(self, plan: Plan) -> None:
        """Apply an edit, and everything that is pending."""
        components = self._components()

        def attempt() -> _Look:
            look = self._look(components)
            look.store(plan(look.definitions), components, self._clock.now_ms())
            return look

        with self._pending.editing():
            try:
                look = retry_on(CommitConflict, ATTEMPTS, attempt)
            except CommitConflict as error:
                raise _overtaken("changed") from error
            if look.pending.edits:
                self._pending.remove(look.pending.last)

    def _look(self, components: Mapping[ObjectKind, Component[Any]]) -> _Look:
        """Read all components at one moment."""

        def attempt() -> _Look:
            pending = self._pending.read()
            seen = dict(zip(components, see_together(list(components.values())), strict=True))
            units = [unit for kind, one in components.items() for unit in _read(kind, one, seen[kind])]
            if self._pending.read().numbers != pending.numbers:
                raise _Moved
            placed = sorted((Placed.of(unit) for unit in units), key=lambda one: one.position)
            return _Look(seen, tuple(placed), pending)

        with trying("reading the definitions"):
            try:  # a version may expire before it is read
                return retry_on((FileNotFoundError, _Moved), ATTEMPTS, attempt)
            except (FileNotFoundError, _Moved) as error:
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


class _Moved(Exception):
    """Pending edits were added, or moved to the metastore, during a read."""


def _read(kind: ObjectKind, component: Component[Any], seen: TableVersion) -> list[Any]:
    return component.read_at(seen, where=calve_views() if kind is ObjectKind.VIEW else None)


def _overtaken(what: str) -> TransientError:
    return TransientError(
        f"the definitions could not be {what}",
        detail=f"Other processes changed them {ATTEMPTS} times in between.",
        hint="Retry.",
    )
