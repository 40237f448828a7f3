"""The first store of definitions, `definitions.db`: its definitions move to the metastore once, when it is met.

Whoever meets it locks it, copies what is in it, and marks it as moved in the same transaction; an older calve refuses
it then. After a crash in between, the next one copies again and finds what is there already. Nobody edits definitions
before the move is done, since every process looks for it first.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from calve.definitions.objects import Definition, SinkState, read_statement
from calve.errors import InvalidInput, TransientError

FILE: Final = "definitions.db"
_KEPT_HERE, _MOVED = 1, 2
"""Formats of the file."""


def move_definitions(home: Path, receive: Callable[[list[Definition]], None]) -> None:
    """Hand the definitions of the first store to `receive`, oldest first, unless they have moved already."""
    file = home / FILE
    if not file.exists():
        return
    with _opened(file) as db:
        if _format(db, file) == _MOVED:
            return
        db.execute("BEGIN IMMEDIATE")
        if _format(db, file) < _MOVED:  # another process may have been faster
            found = _definitions(db)
            if found:
                receive(found)
            db.execute(f"PRAGMA user_version = {_MOVED}")
        db.execute("COMMIT")


def _definitions(db: sqlite3.Connection) -> list[Definition]:
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'definition'").fetchone():
        return []
    rows = db.execute("SELECT uid, version, sql, uses, owner, standing FROM definition ORDER BY position").fetchall()
    return [
        Definition(uid, version, read_statement(sql), tuple(json.loads(uses)), owner, SinkState(**json.loads(standing)))
        for uid, version, sql, uses, owner, standing in rows
    ]


def _format(db: sqlite3.Connection, file: Path) -> int:
    found = int(db.execute("PRAGMA user_version").fetchone()[0])
    if found > _MOVED:
        raise InvalidInput(
            "the definitions were written by a newer calve",
            detail=f"{file} has format {found}; this calve knows {_MOVED}.",
            hint="Upgrade calve.",
        )
    return found


@contextmanager
def _opened(file: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(file, timeout=30, isolation_level=None)) as db:
            yield db
    except (sqlite3.Error, OSError) as error:
        raise TransientError(
            "the definitions cannot be reached", detail=f"{file}: {error}", hint="Check the home folder."
        ) from error
