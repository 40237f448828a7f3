"""Definitions as units of the metastore: components `secrets`, `connections`, `sources`, `views` and `sinks`.

A definition is its canonical SQL and its identity. A secret is a reference (a variable, a file, a name in the vault):
its text is never stored here.
"""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

from calve.definitions.objects import Definition, SinkState, kind_of, read_statement
from calve.metastore.filters import Filter, all_of, eq
from calve.metastore.units import Role, unit_field
from calve.metastore.views import ViewType, ViewUnit
from calve.sql.statements import ObjectKind

PLUGIN, WORKSPACE = "calve", "default"
"""Identify calve's own views among the views of the component."""


class DefinitionType(StrEnum):
    """The kind of object that a unit defines."""

    SECRET = "SECRET"  # noqa: S105 - a kind, not a secret
    CONNECTION = "CONNECTION"
    SOURCE = "SOURCE"
    SINK = "SINK"


@dataclass(frozen=True, kw_only=True)
class DefinitionUnit:
    """One definition other than a view."""

    uid: str | None = unit_field(role=Role.STORAGE_KEY)
    metadata_type: DefinitionType | None = unit_field(role=Role.TYPE)
    name: str | None = unit_field()
    version: int | None = unit_field()
    sql: str | None = unit_field()
    uses: tuple[str, ...] | None = unit_field()
    owner: str | None = unit_field(DefinitionType.SECRET)
    standing: str | None = unit_field(DefinitionType.SINK)
    """As JSON."""
    position: int | None = unit_field()
    """Orders definitions by when they were created."""
    last_modified_time: int | None = unit_field()
    additional_metadata: str | None = unit_field()


AnyUnit = DefinitionUnit | ViewUnit


@dataclass(frozen=True)
class Placed:
    """A definition and its position in the order of creation."""

    definition: Definition
    position: int

    def to_unit(self, now_ms: int) -> AnyUnit:
        """The unit to store."""
        found = self.definition
        statement = found.statement
        if found.kind is ObjectKind.VIEW:
            return ViewUnit(
                storage_plugin=PLUGIN,
                workspace=WORKSPACE,
                view_name=found.name,
                metadata_type=ViewType.VIEW,
                sql=statement.to_sql(),
                uid=found.uid,
                version=found.version,
                uses=found.uses,
                position=self.position,
                last_modified_time=now_ms,
            )
        return DefinitionUnit(
            uid=found.uid,
            metadata_type=DefinitionType(found.kind.value),
            name=found.name,
            version=found.version,
            sql=statement.to_sql(),
            uses=found.uses,
            owner=found.owner if found.kind is ObjectKind.SECRET else None,
            standing=json.dumps(asdict(found.standing)) if found.kind is ObjectKind.SINK else None,
            position=self.position,
            last_modified_time=now_ms,
        )

    @classmethod
    def of(cls, unit: AnyUnit) -> "Placed":
        """Read the definition of a unit."""
        statement = read_statement(unit.sql or "")
        standing, owner = None, ""
        if isinstance(unit, DefinitionUnit):
            standing, owner = unit.standing, unit.owner or ""
        return cls(
            Definition(
                unit.uid or "",
                unit.version or 0,
                statement,
                unit.uses or (),
                owner,
                SinkState(**json.loads(standing)) if standing else SinkState(),
            ),
            unit.position or 0,
        )


def partition_of(definition: Definition) -> Filter:
    """Matches only the unit of a definition in its component."""
    if kind_of(definition.statement) is ObjectKind.VIEW:
        return calve_views() & eq("view_name", definition.name)
    return eq("uid", definition.uid)


def calve_views() -> Filter:
    """Matches calve's own views."""
    return all_of(eq("storage_plugin", PLUGIN), eq("workspace", WORKSPACE))
