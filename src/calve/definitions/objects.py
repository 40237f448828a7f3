"""A definition: an accepted statement, with an identity that outlives its changes."""

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
from calve.values import value

_KINDS: Final[dict[type[Create], ObjectKind]] = {
    CreateSecret: ObjectKind.SECRET,
    CreateConnection: ObjectKind.CONNECTION,
    CreateSource: ObjectKind.SOURCE,
    CreateView: ObjectKind.VIEW,
    CreateSink: ObjectKind.SINK,
}

COMPONENTS: Final = {
    ObjectKind.SECRET: "secrets",
    ObjectKind.CONNECTION: "connections",
    ObjectKind.SOURCE: "sources",
    ObjectKind.VIEW: "views",
    ObjectKind.SINK: "sinks",
}
"""The components of the metastore that keep definitions, in dependency order."""

RELATIONS: Final = frozenset({ObjectKind.SOURCE, ObjectKind.VIEW})
"""Kinds that share one namespace: FROM accepts either."""


class ConcurrentEdit(TransientError):
    """Another process changed the definition since it was read."""


@value
class SinkState:
    """The state of a sink that ALTER sets besides its options."""

    paused: bool = False
    accepted_snapshot: int | None = None
    """A foreign snapshot that the user accepted."""
    generation: int = 0
    """Version at which the user asked to refill the table (SNAPSHOT = true); 0: never."""
    unpartitioned: bool = False
    """The last SET PARTITION BY had no fields."""


PLAIN: Final = SinkState()


@value
class Definition:
    """One object. `uid` never changes, `version` grows with every change."""

    uid: str
    version: int
    statement: Create
    uses: tuple[str, ...] = ()
    """Uids of the objects that it refers to."""
    owner: str = ""
    """Uid of the connection that this secret was created with, if any."""
    standing: SinkState = PLAIN

    @property
    def kind(self) -> ObjectKind:
        """The kind of the object."""
        return kind_of(self.statement)

    @property
    def name(self) -> str:
        """Its name, in its original case."""
        return self.statement.name.name

    @property
    def label(self) -> str:
        """Its kind and name, for messages."""
        return f'{self.kind.value.lower()} "{self.name}"'

    @property
    def reference(self) -> Identifier:
        """The identifier that refers only to it."""
        return Identifier.exact(self.name)


def kind_of(statement: Create) -> ObjectKind:
    """The kind of object that a CREATE statement creates."""
    return _KINDS[type(statement)]


def spaces(kind: ObjectKind) -> frozenset[ObjectKind]:
    """The kinds that share a namespace with this one: names are unique among them."""
    return RELATIONS if kind in RELATIONS else frozenset({kind})


def read_statement(sql: str) -> Create:
    """Parse a stored statement. Raises InvalidInput."""
    statement = parse_one(sql)
    if not isinstance(statement, Create):
        raise InvalidInput("a stored definition is corrupt", detail=f"It is not a CREATE statement: {sql[:40]}")
    return statement
