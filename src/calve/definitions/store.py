"""Definitions in a SQLite file of the home folder. One interface, so that they can live elsewhere.

Edits are transactions: each checks that what it builds on is still there. Whoever watches for edits compares
`revision`. A file written by a newer calve is refused rather than misread.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Protocol

from calve.definitions.objects import ConcurrentEdit, Definition, Standing, read_statement, spaces
from calve.errors import InvalidInput, TransientError
from calve.sql.names import Identifier
from calve.sql.statements import ObjectKind

FORMAT = 1
"""Grows when the layout changes."""

_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS definition (
         uid TEXT PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL, sql TEXT NOT NULL,
         uses TEXT NOT NULL, owner TEXT NOT NULL, standing TEXT NOT NULL, position INTEGER NOT NULL)""",
    "CREATE TABLE IF NOT EXISTS revision (number INTEGER NOT NULL)",
    "INSERT INTO revision SELECT 0 WHERE NOT EXISTS (SELECT * FROM revision)",
)


class DefinitionStore(Protocol):
    """Where definitions live."""

    @property
    def revision(self) -> int:
        """Grows with every edit."""
        ...

    def all(self) -> list[Definition]:
        """Every definition, oldest first."""
        ...

    def create(self, definitions: Iterable[Definition]) -> None:
        """Add these, all or none. Raises InvalidInput when a name is taken."""
        ...

    def replace(self, changed: Definition, added: Iterable[Definition] = ()) -> Definition:
        """Put a changed definition in the place of the version it was read as, under the next one."""
        ...

    def drop(self, definitions: Iterable[Definition]) -> None:
        """Remove these, all or none, if they are as they were read."""
        ...


class SqliteDefinitions:
    """The store of a home folder."""

    def __init__(self, home: Path) -> None:
        self._file = home / "definitions.db"

    @property
    def revision(self) -> int:
        with self._reading() as db:
            return int(db.execute("SELECT number FROM revision").fetchone()[0])

    def all(self) -> list[Definition]:
        with self._reading() as db:
            rows = db.execute(
                "SELECT uid, version, sql, uses, owner, standing FROM definition ORDER BY position"
            ).fetchall()
        return [_definition(row) for row in rows]

    def create(self, definitions: Iterable[Definition]) -> None:
        with self._editing() as db:
            for definition in definitions:
                self._insert(db, definition)

    def replace(self, changed: Definition, added: Iterable[Definition] = ()) -> Definition:
        following = replace(changed, version=changed.version + 1)
        with self._editing() as db:
            for definition in added:
                self._insert(db, definition)
            done = db.execute(
                "UPDATE definition SET version = ?, sql = ?, uses = ?, standing = ? WHERE uid = ? AND version = ?",
                (
                    following.version,
                    following.statement.to_sql(),
                    json.dumps(following.uses),
                    json.dumps(asdict(following.standing)),
                    changed.uid,
                    changed.version,
                ),
            )
            if done.rowcount != 1:
                raise _edited(changed)
        return following

    def drop(self, definitions: Iterable[Definition]) -> None:
        with self._editing() as db:
            for definition in definitions:
                where = (definition.uid, definition.version)
                done = db.execute("DELETE FROM definition WHERE uid = ? AND version = ?", where)
                if done.rowcount != 1:
                    raise _edited(definition)

    def _insert(self, db: sqlite3.Connection, definition: Definition) -> None:
        kinds = sorted(kind.value for kind in spaces(definition.kind))
        rows = db.execute("SELECT kind, name FROM definition WHERE kind IN (?, ?)", (kinds[0], kinds[-1])).fetchall()
        wanted = definition.statement.name
        for kind, name in rows:
            if wanted.matches(name) or name.lower() == wanted.name.lower():
                raise InvalidInput(
                    f'there is a {kind.lower()} "{name}" already', hint=f"Use ALTER {kind}, or another name."
                )
        db.execute(
            "INSERT INTO definition SELECT ?, ?, ?, ?, ?, ?, ?, ?, coalesce(max(position), 0) + 1 FROM definition",
            (
                definition.uid,
                definition.kind.value,
                definition.name,
                definition.version,
                definition.statement.to_sql(),
                json.dumps(definition.uses),
                definition.owner,
                json.dumps(asdict(definition.standing)),
            ),
        )

    # ---- the file

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._file, timeout=30, isolation_level=None)) as db:
                self._check_format(db)
                yield db
        except (sqlite3.Error, OSError) as error:
            raise TransientError(
                "the definitions cannot be reached", detail=f"{self._file}: {error}", hint="Check the home folder."
            ) from error

    @contextmanager
    def _editing(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("UPDATE revision SET number = number + 1")
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    def _check_format(self, db: sqlite3.Connection) -> None:
        found = int(db.execute("PRAGMA user_version").fetchone()[0])
        if found > FORMAT:
            raise InvalidInput(
                "the definitions were written by a newer calve",
                detail=f"{self._file} has format {found}; this calve knows {FORMAT}.",
                hint="Upgrade calve.",
            )
        if found < FORMAT:
            db.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {FORMAT}")
            db.execute("COMMIT")


def _definition(row: tuple[str, int, str, str, str, str]) -> Definition:
    uid, version, sql, uses, owner, standing = row
    return Definition(
        uid, version, read_statement(sql), tuple(json.loads(uses)), owner, Standing(**json.loads(standing))
    )


def _edited(definition: Definition) -> ConcurrentEdit:
    return ConcurrentEdit(
        f"{definition.label} was changed by somebody else meanwhile",
        detail=f"It was read as version {definition.version}.",
        hint="Look at it (SHOW CREATE) and try again.",
    )


class Definitions:
    """All definitions as one look at the store found them."""

    def __init__(self, found: Iterable[Definition]) -> None:
        self._all = list(found)

    def __iter__(self) -> Iterator[Definition]:
        return iter(self._all)

    def of(self, *kinds: ObjectKind) -> list[Definition]:
        """Those of some kinds."""
        return [d for d in self._all if d.kind in kinds]

    def find(self, name: Identifier, *kinds: ObjectKind) -> Definition | None:
        """The one that a name stands for."""
        return next((d for d in self.of(*kinds) if name.matches(d.name)), None)

    def by_uid(self, uid: str) -> Definition | None:
        """The one with this identity."""
        return next((d for d in self._all if d.uid == uid), None)

    def fingerprint(self, definition: Definition) -> tuple[tuple[str, int], ...]:
        """Versions of an object and of all that it refers to, directly or through others."""
        found: dict[str, int] = {}
        wanted = [definition]
        while wanted:
            one = wanted.pop()
            if one.uid not in found:
                found[one.uid] = one.version
                wanted += [d for uid in one.uses if (d := self.by_uid(uid))]
        return tuple(sorted(found.items()))

    def dependents(self, uid: str) -> list[Definition]:
        """All that refers to an object, directly or through others; nearest first."""
        found: list[Definition] = []
        wanted = [uid]
        while wanted:
            one = wanted.pop(0)
            for definition in self._all:
                if one in definition.uses and definition not in found:
                    found.append(definition)
                    wanted.append(definition.uid)
        return found
