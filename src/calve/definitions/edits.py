"""Edits of definitions (pure): what a list of definitions becomes, and the steps between two lists.

Steps can be repeated: applied to definitions that they were applied to already, they change nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from calve.definitions.objects import ConcurrentEdit, Definition, SinkState, read_statement, spaces
from calve.errors import InvalidInput
from calve.sql.parts import FromLiteral
from calve.sql.statements import CreateSecret
from calve.values import value


def created(known: Sequence[Definition], added: Iterable[Definition]) -> list[Definition]:
    """The definitions with these at the end. Raises InvalidInput if a name is taken."""
    found = list(known)
    for definition in added:
        _check_name(found, definition)
        _check_text(definition)
        found.append(definition)
    return found


def replaced(
    known: Sequence[Definition], changed: Definition, added: Iterable[Definition], gone: Iterable[Definition] = ()
) -> list[Definition]:
    """As `dropped` and `created`; and the version that was read is replaced with a changed one, under the next version.

    Raises ConcurrentEdit if a definition changed since it was read.
    """
    _check_read(known, changed)
    following = replace(changed, version=changed.version + 1)
    _check_text(following)
    return [following if there.uid == changed.uid else there for there in created(dropped(known, gone), added)]


def dropped(known: Sequence[Definition], gone: Iterable[Definition]) -> list[Definition]:
    """The definitions without these. Raises ConcurrentEdit if one changed since it was read."""
    uids = set()
    for definition in gone:
        _check_read(known, definition)
        uids.add(definition.uid)
    return [there for there in known if there.uid not in uids]


def _check_name(known: Sequence[Definition], definition: Definition) -> None:
    wanted, kinds = definition.statement.name, spaces(definition.kind)
    for there in known:
        if there.kind in kinds and (wanted.matches(there.name) or there.name.lower() == wanted.name.lower()):
            kind = there.kind.value
            raise InvalidInput(
                f'{kind.lower()} "{there.name}" already exists', hint=f"Use ALTER {kind}, or another name."
            )


def _check_text(definition: Definition) -> None:
    statement = definition.statement
    if isinstance(statement, CreateSecret) and isinstance(statement.origin, FromLiteral):
        raise InvalidInput(
            f"the text of {definition.label} cannot be stored here",
            detail="Definitions contain only references to secrets.",
        )


def _check_read(known: Sequence[Definition], definition: Definition) -> None:
    there = next((one for one in known if one.uid == definition.uid), None)
    if there is None or there.version != definition.version:
        raise ConcurrentEdit(
            f"another process changed {definition.label}",
            detail=f"This one read version {definition.version}.",
            hint="Check it with SHOW CREATE, and retry.",
        )


@value
class Steps:
    """Leads from one list of definitions to another."""

    put: tuple[Definition, ...]
    """New ones, and new versions."""
    removed: tuple[str, ...]
    """Uids."""

    @classmethod
    def between(cls, before: Sequence[Definition], after: Sequence[Definition]) -> "Steps":
        """The steps from one list to another; one uid and version mean one definition."""
        versions, kept = {one.uid: one.version for one in before}, {one.uid for one in after}
        return cls(
            tuple(one for one in after if versions.get(one.uid) != one.version),
            tuple(one.uid for one in before if one.uid not in kept),
        )

    def applied(self, known: Sequence[Definition]) -> list[Definition]:
        """The list after these steps."""
        found = {one.uid: one for one in known if one.uid not in self.removed}
        for one in self.put:
            there = found.get(one.uid)
            if there is None or there.version < one.version:
                found[one.uid] = one
        return list(found.values())

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"put": [to_json(one) for one in self.put], "removed": list(self.removed)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "Steps":
        """Inverse of `to_json`. Raises ValueError, KeyError, TypeError or CalveError."""
        return cls(tuple(from_json(one) for one in body["put"]), tuple(body["removed"]))


def to_json(definition: Definition) -> dict[str, Any]:
    """A definition as a JSON object."""
    return {
        "uid": definition.uid,
        "version": definition.version,
        "sql": definition.statement.to_sql(),
        "uses": list(definition.uses),
        "owner": definition.owner,
        "standing": asdict(definition.standing),
    }


def from_json(body: Mapping[str, Any]) -> Definition:
    """Inverse of `to_json`. Raises KeyError, TypeError or CalveError."""
    return Definition(
        uid=body["uid"],
        version=body["version"],
        statement=read_statement(body["sql"]),
        uses=tuple(body["uses"]),
        owner=body["owner"],
        standing=SinkState(**body["standing"]),
    )
