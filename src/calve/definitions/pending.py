"""Edits that are not in the metastore yet: a table in the SQLite file of its catalog.

    CREATE, ALTER, DROP ──► pending edits ──► metastore, with the next edit that opens it, and when sinks are run

The definitions are those of the metastore, and the pending edits on top. So a statement is stored without Iceberg and
Arrow, whose imports alone take a second.

Whoever edits holds the lock of the home folder (`editing`). A process that moves edits to the metastore commits them
there first and removes them here afterwards. In between they are in both places, which is harmless: steps can be
repeated, and nobody edits meanwhile. If it dies there, the next one moves them again, before it edits anything.
A reader of both places looks here before and after, and the same edits mean that nothing was edited in between
(`MetastoreDefinitions`); or it reads both in one transaction (`copies.py`).
"""

import fcntl
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from calve.definitions.edits import Steps
from calve.definitions.objects import COMPONENTS, Definition
from calve.errors import CalveError, TerminalError, TransientError
from calve.metastore.catalog_file import connect, metadata_locations, naming
from calve.metastore.config import MetastoreConfig, below
from calve.storage.local_folders import make_private
from calve.values import value

NAMESPACE: Final = "metastore"
MOST: Final = 100
"""Edits that may be pending; the next one moves them."""
_FORMAT: Final = 1
_LOCK_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.01


@value
class PendingState:
    """What the SQLite file says, in one transaction."""

    metadata: Mapping[str, str]
    """The current metadata file of each component; empty before the metastore is opened for the first time."""
    edits: tuple[Steps, ...]
    last: int
    """The number of the newest edit that ever was pending."""

    def applied(self, known: list[Definition]) -> list[Definition]:
        """Definitions of the metastore with the pending edits."""
        for steps in self.edits:
            known = steps.applied(known)
        return known

    @property
    def numbers(self) -> tuple[int, int]:
        """Differ if other edits are pending: they are added at the end, and removed together."""
        return self.last, len(self.edits)

    @property
    def revision(self) -> str:
        """Differs after every edit."""
        return json.dumps([sorted(self.metadata.items()), self.last])


class PendingEdits:
    """The pending edits of a home folder."""

    def __init__(self, home: Path, environment: Mapping[str, str]) -> None:
        location = below(str(home), MetastoreConfig.load(home, environment).relative_path)
        self._home = home
        self._database = Path(location.removeprefix("file://")) / "catalog.db"

    def read(self) -> PendingState:
        """Raises TransientError if the file cannot be read."""
        try:
            self._database.stat()
        except FileNotFoundError:
            return PendingState({}, (), 0)
        except OSError as error:
            raise _failed("reading the definitions", error) from error
        with naming(self._database, "definitions"), closing(connect(self._database)) as connection, connection:
            connection.execute("BEGIN")
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            found = metadata_locations(connection, NAMESPACE).items()
            metadata = {name: location for name, location in found if name in COMPONENTS.values()}
            if "calve_edits" not in tables:
                return PendingState(metadata, (), 0)
            edits = [_steps(text) for (text,) in connection.execute("SELECT steps FROM calve_edits ORDER BY number")]
            numbers = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'calve_edits'").fetchone()
            return PendingState(metadata, tuple(edits), numbers[0] if numbers else 0)

    def add(self, steps: Steps) -> None:
        """Store an edit. Only under the lock. Raises TransientError if it was not stored."""
        body = json.dumps({"format": _FORMAT, **steps.to_json()})
        self._create()
        with naming(self._database, "definitions"), closing(connect(self._database)) as connection, connection:
            connection.execute("INSERT INTO calve_edits (steps) VALUES (?)", (body,))

    def remove(self, last: int) -> None:
        """Remove the edits up to this one, which the metastore contains. Only under the lock."""
        with naming(self._database, "definitions"), closing(connect(self._database)) as connection, connection:
            connection.execute("DELETE FROM calve_edits WHERE number <= ?", (last,))

    @contextmanager
    def editing(self) -> Iterator[None]:
        """Hold the lock: nobody else edits the definitions meanwhile. Raises TransientError if somebody else does."""
        try:
            make_private(self._home)
            file = (self._home / "definitions.lock").open("a")
        except OSError as error:
            raise _failed("changing the definitions", error) from error
        with file:
            _wait_for(file.fileno())
            yield

    def _create(self) -> None:
        try:
            make_private(self._database.parent)
            # As the catalog does it: SQLite serializes neither the switch to WAL nor the creation of tables.
            with Path(f"{self._database}.lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                with (
                    naming(self._database, "definitions"),
                    closing(connect(self._database, "rwc")) as connection,
                    connection,
                ):
                    connection.execute("PRAGMA journal_mode = WAL")
                    connection.execute(
                        "CREATE TABLE IF NOT EXISTS calve_edits (number INTEGER PRIMARY KEY AUTOINCREMENT, steps TEXT)"
                    )
        except OSError as error:
            raise _failed("changing the definitions", error) from error


def _failed(what: str, error: OSError) -> TransientError:
    from calve.catalog.failures import transient  # noqa: PLC0415 - slow to import

    return transient(f"{what} failed", error)


def _wait_for(file: int) -> None:
    until = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > until:
                raise TransientError(
                    "another process changes the definitions",
                    detail=f"It has not finished for {_LOCK_SECONDS:g} s.",
                    hint="Retry, and look for a suspended calve process if that does not help.",
                ) from error
            time.sleep(_LOOK_SECONDS)
        else:
            return


def _steps(text: str) -> Steps:
    try:
        body = json.loads(text)
        if body["format"] == _FORMAT:
            return Steps.from_json(body)
    except (ValueError, KeyError, TypeError, RecursionError, CalveError) as error:
        raise TerminalError(
            "a pending edit of the definitions cannot be read",
            detail=f"{type(error).__name__}: {error}.",
            hint="Restore the home folder from a backup.",
        ) from error
    raise TerminalError(
        "a newer version of calve edited the definitions", hint="Run that version, or a newer one, on this home folder."
    )
