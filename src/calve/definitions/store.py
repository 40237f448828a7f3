"""The definitions of a home folder: their store, behind an interface that allows other ones, and one read of it."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from calve.definitions.copies import read_copy
from calve.definitions.objects import Definition
from calve.errors import CalveError
from calve.sql.names import Identifier
from calve.sql.statements import ObjectKind

if TYPE_CHECKING:
    from calve.definitions.in_metastore import MetastoreDefinitions


class DefinitionStore(Protocol):
    """Stores definitions."""

    @property
    def revision(self) -> int:
        """Grows with every edit."""
        ...

    def all(self) -> list[Definition]:
        """Every definition, oldest first."""
        ...

    def create(self, definitions: Iterable[Definition]) -> None:
        """Add these, all or none. Raises InvalidInput if a name is taken."""
        ...

    def replace(self, changed: Definition, added: Iterable[Definition] = ()) -> Definition:
        """Replace the version that was read with a changed definition, under the next version.

        Raises ConcurrentEdit if the definition changed since it was read.
        """
        ...

    def drop(self, definitions: Iterable[Definition]) -> None:
        """Remove these, all or none. Raises ConcurrentEdit if one changed since it was read."""
        ...


class HomeDefinitions:
    """The store of a home folder: its metastore, and a copy that is read while it is current."""

    def __init__(self, home: Path, environment: Mapping[str, str] | None = None) -> None:
        self._home = home
        self._environment = os.environ if environment is None else environment
        self._opened: MetastoreDefinitions | None = None

    @property
    def revision(self) -> int:
        return self._metastore().revision

    def all(self) -> list[Definition]:
        copy = read_copy(self._home, self._environment)
        return self._copied() if copy is None else list(copy.definitions)

    def create(self, definitions: Iterable[Definition]) -> None:
        self._metastore().create(definitions)
        self._copy_again()

    def replace(self, changed: Definition, added: Iterable[Definition] = ()) -> Definition:
        following = self._metastore().replace(changed, added)
        self._copy_again()
        return following

    def drop(self, definitions: Iterable[Definition]) -> None:
        self._metastore().drop(definitions)
        self._copy_again()

    def _copy_again(self) -> None:
        """Renew the copy after an edit. The edit is done: without a copy, the next read is slower, and that is all."""
        with suppress(CalveError):
            self._copied()

    def _copied(self) -> list[Definition]:
        copy = self._metastore().copy()
        copy.write(self._home)
        return list(copy.definitions)

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
