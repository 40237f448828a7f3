"""A definition: a statement that was accepted, with an identity that outlives changes of it."""

from dataclasses import dataclass
from typing import Final

from calve.errors import InvalidInput, TransientError
from calve.sql.names import Identifier
from calve.sql.parser import parse_one
from calve.sql.statements import (
    Create,
    CreateConnection,
    CreateSecret,
    CreateSink,
    CreateSource,
    CreateView,
    ObjectKind,
)

_KINDS: Final[dict[type[Create], ObjectKind]] = {
    CreateSecret: ObjectKind.SECRET,
    CreateConnection: ObjectKind.CONNECTION,
    CreateSource: ObjectKind.SOURCE,
    CreateView: ObjectKind.VIEW,
    CreateSink: ObjectKind.SINK,
}

RELATIONS: Final = frozenset({ObjectKind.SOURCE, ObjectKind.VIEW})
"""Kinds that share their names: FROM takes either."""


class ConcurrentEdit(TransientError):
    """Another process changed the definition since it was read."""


@dataclass(frozen=True)
class SinkState:
    """What a sink was told by ALTER beyond its options."""

    paused: bool = False
    accepted_snapshot: int | None = None
    """A foreign snapshot that the user vouched for."""
    generation: int = 0
    """Version at which the whole contents were asked for anew (SNAPSHOT = true); 0: never."""
    unpartitioned: bool = False
    """SET PARTITION BY () was the last word about partitions."""


PLAIN: Final = SinkState()


@dataclass(frozen=True)
class Definition:
    """One object. `uid` stays for its life, `version` grows with every change."""

    uid: str
    version: int
    statement: Create
    uses: tuple[str, ...] = ()
    """Uids of what it refers to."""
    owner: str = ""
    """Uid of the connection that brought this secret with it, if one did."""
    standing: SinkState = PLAIN

    @property
    def kind(self) -> ObjectKind:
        """What it is."""
        return kind_of(self.statement)

    @property
    def name(self) -> str:
        """Its name, in the case it was created with."""
        return self.statement.name.name

    @property
    def label(self) -> str:
        """How messages call it."""
        return f'{self.kind.value.lower()} "{self.name}"'

    @property
    def reference(self) -> Identifier:
        """The identifier that names it and nothing else."""
        return Identifier.exact(self.name)


def kind_of(statement: Create) -> ObjectKind:
    """What a CREATE statement makes."""
    return _KINDS[type(statement)]


def spaces(kind: ObjectKind) -> frozenset[ObjectKind]:
    """The kinds among which a name is unique."""
    return RELATIONS if kind in RELATIONS else frozenset({kind})


def read_statement(sql: str) -> Create:
    """A stored statement."""
    statement = parse_one(sql)
    if not isinstance(statement, Create):
        raise InvalidInput("a stored definition is damaged", detail=f"It is no CREATE statement: {sql[:40]}")
    return statement
