"""Resolves names in statements to definitions, with helpful errors for unknown ones."""

from calve.definitions.objects import Definition
from calve.definitions.store import Definitions
from calve.model.connection import SecretRef
from calve.sql.errors import SqlError
from calve.sql.names import Identifier
from calve.sql.options import SecretName
from calve.sql.statements import ConnectionKind, CreateConnection, ObjectKind
from calve.suggest import suggestion


def required(definitions: Definitions, name: Identifier, *kinds: ObjectKind) -> Definition:
    """Find an object of one of these kinds by name. Raises SqlError."""
    found = definitions.find(name, *kinds)
    if found is not None:
        return found
    words = " or ".join(kind.value.lower() for kind in kinds)
    other = next((d for d in definitions if name.matches(d.name)), None)
    if other is not None:
        raise SqlError.at(name.where, f'"{name}" is a {other.kind.value.lower()}, not a {words}')
    names = sorted(d.name for d in definitions.of(*kinds))
    hint = suggestion(name.name, names) or _known(names, kinds)
    raise SqlError.at(name.where, f'there is no {words} "{name}"', hint=hint)


def _known(names: list[str], kinds: tuple[ObjectKind, ...]) -> str:
    if names:
        return f"There are {', '.join(names[:10])}."
    return f"Create it first: CREATE {kinds[0].value} ..."


def in_use(name: Identifier, found: Definition, dependents: list[Definition]) -> SqlError:
    """The error of a DROP without CASCADE of an object that others need."""
    used = ", ".join(one.label for one in dependents)
    hint = f"It is used by {used}. Drop them first, or write CASCADE."
    return SqlError.at(name.where, f"{found.label} is in use", hint=hint)


def required_connection(definitions: Definitions, name: Identifier, kind: ConnectionKind) -> Definition:
    """Find a connection of this kind by name. Raises SqlError."""
    found = required(definitions, name, ObjectKind.CONNECTION)
    statement = found.statement
    if isinstance(statement, CreateConnection) and statement.kind is not kind:
        raise SqlError.at(
            name.where,
            f'connection "{found.name}" leads to {statement.kind.value}, not to {kind.value}',
        )
    return found


def secret(definitions: Definitions, name: SecretName | None) -> SecretRef | None:
    """The reference to a named secret; None without a name. Raises SqlError."""
    if name is None:
        return None
    found = required(definitions, name.name, ObjectKind.SECRET)
    return SecretRef(found.uid, found.name)
