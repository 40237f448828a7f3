"""The definitions of a home folder: their store, behind an interface that allows other ones, and one read of it."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from calve.definitions.copies import read_copy
from calve.definitions.edits import Steps, created, dropped, replaced
from calve.definitions.objects import Definition
from calve.definitions.pending import MOST, PendingEdits, PendingState
from calve.errors import CalveError
from calve.sql.names import Identifier
from calve.sql.statements import ObjectKind

if TYPE_CHECKING:
    from calve.definitions.in_metastore import MetastoreDefinitions


class DefinitionStore(Protocol):
    """Stores definitions."""

    @property
    def revision(self) -> str:
        """Differs after every edit."""
        ...

    def all(self) -> list[Definition]:
        """Every definition, oldest first."""
        ...

    def create(self, definitions: Iterable[Definition], gone: Iterable[Definition] = ()) -> None:
        """Add these and drop others in one edit, all or none. Raises like `drop`; InvalidInput for a taken name."""
        ...

    def replace(
        self, changed: Definition, added: Iterable[Definition] = (), gone: Iterable[Definition] = ()
    ) -> Definition:
        """Replace the version that was read with a changed definition, under the next version.

        In the same edit others are added and dropped, so that nobody sees one without the other. Raises ConcurrentEdit
        if one of them changed since it was read.
        """
        ...

    def drop(self, definitions: Iterable[Definition]) -> None:
        """Remove these, all or none. Raises ConcurrentEdit if one changed since it was read."""
        ...

    def settle(self) -> None:
        """Move what is pending to the metastore, where other engines read it."""
        ...


class HomeDefinitions:
    """The store of a home folder: its metastore, a copy that is read while it is current, and pending edits.

    With a current copy, definitions are read and changed without Iceberg.
    """

    def __init__(self, home: Path, environment: Mapping[str, str] | None = None) -> None:
        self._home = home
        self._environment = os.environ if environment is None else environment
        self._opened: MetastoreDefinitions | None = None

    @property
    def revision(self) -> str:
        return self._pending().read().revision

    def all(self) -> list[Definition]:
        return self._metastore().copy_for(self._home) if (known := self.copied()) is None else known

    def copied(self) -> list[Definition] | None:
        """Every definition, if the copy is current: without it, reading them takes seconds."""
        return self._applied(self._pending().read())

    def create(self, definitions: Iterable[Definition], gone: Iterable[Definition] = ()) -> None:
        given, left = list(definitions), list(gone)
        self._edit(lambda known: created(dropped(known, left), given))

    def replace(
        self, changed: Definition, added: Iterable[Definition] = (), gone: Iterable[Definition] = ()
    ) -> Definition:
        given, left = list(added), list(gone)
        self._edit(lambda known: replaced(known, changed, given, left))
        return replace(changed, version=changed.version + 1)

    def drop(self, definitions: Iterable[Definition]) -> None:
        given = list(definitions)
        self._edit(lambda known: dropped(known, given))

    def settle(self) -> None:
        if self._pending().read().edits:
            self._metastore().settle()
            self._copy_again()

    def _edit(self, plan: Callable[[Sequence[Definition]], list[Definition]]) -> None:
        pending = self._pending()
        with pending.editing():
            moment = pending.read()
            known = self._applied(moment)
            if known is not None and len(moment.edits) < MOST:
                pending.add(Steps.between(known, plan(known)))
                return
        self._metastore().edit(plan)
        self._copy_again()

    def _applied(self, moment: PendingState) -> list[Definition] | None:
        known = read_copy(self._home, moment)
        return None if known is None else moment.applied(known)

    def _copy_again(self) -> None:
        """Renew the copy after an edit. The edit is done: without a copy, the next read is slower, and that is all."""
        with suppress(CalveError):
            self._metastore().copy_for(self._home)

    def _pending(self) -> PendingEdits:
        return PendingEdits(self._home, self._environment)

    def _metastore(self) -> "MetastoreDefinitions":
        if self._opened is None:
            from calve.definitions.in_metastore import MetastoreDefinitions  # noqa: PLC0415 - slow to import

            self._opened = MetastoreDefinitions(self._home, self._environment)
        return self._opened


class Definitions:
    """All definitions of one read of the store."""

    def __init__(self, found: Iterable[Definition]) -> None:
        self._all = list(found)

    def __iter__(self) -> Iterator[Definition]:
        return iter(self._all)

    def of(self, *kinds: ObjectKind) -> list[Definition]:
        """The definitions of these kinds."""
        return [d for d in self._all if d.kind in kinds]

    def find(self, name: Identifier, *kinds: ObjectKind) -> Definition | None:
        """The definition that a name refers to."""
        return next((d for d in self.of(*kinds) if name.matches(d.name)), None)

    def by_uid(self, uid: str) -> Definition | None:
        """The definition with this identity."""
        return next((d for d in self._all if d.uid == uid), None)

    def fingerprint(self, definition: Definition) -> tuple[tuple[str, int], ...]:
        """Versions of an object and of everything that it refers to, directly or indirectly."""
        found: dict[str, int] = {}
        wanted = [definition]
        while wanted:
            one = wanted.pop()
            if one.uid not in found:
                found[one.uid] = one.version
                wanted += [d for uid in one.uses if (d := self.by_uid(uid))]
        return tuple(sorted(found.items()))

    def dependents(self, uid: str) -> list[Definition]:
        """Everything that refers to an object, directly or indirectly; nearest first."""
        found: list[Definition] = []
        wanted = [uid]
        while wanted:
            one = wanted.pop(0)
            for definition in self._all:
                if one in definition.uses and definition not in found:
                    found.append(definition)
                    wanted.append(definition.uid)
        return found
