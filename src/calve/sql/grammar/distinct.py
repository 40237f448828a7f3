"""Lists of names in which none may be there twice."""

from calve.sql.grammar.cursor import Cursor
from calve.sql.names import Identifier


class Distinct:
    """Remembers names and refuses one that means the same as an earlier one."""

    def __init__(self, cursor: Cursor, what: str) -> None:
        self._cursor = cursor
        self._what = what
        self._seen: dict[str, list[Identifier]] = {}

    def add(self, name: Identifier) -> Identifier:
        """The name, if it is new."""
        alike = self._seen.setdefault(name.name.lower(), [])
        if any(name.collides(other) for other in alike):
            raise self._cursor.error(f'{self._what} "{name}" is there twice', name.where, "")
        alike.append(name)
        return name

    def finds(self, name: Identifier) -> bool:
        """Whether a name means one of those that were added."""
        return any(name.matches(other.name) for other in self._seen.get(name.name.lower(), ()))

    def names(self) -> list[str]:
        """All that were added."""
        return [name.name for alike in self._seen.values() for name in alike]


def names(cursor: Cursor, what: str) -> tuple[Identifier, ...]:
    """`(name, ...)`, each once; `what` is one of them, as in "key column"."""
    distinct = Distinct(cursor, what)
    return cursor.list_of(lambda: distinct.add(cursor.identifier(f"a {what}")), f"{what}s")
