"""A copy of the definitions of a home folder, to read them without Iceberg and Arrow, whose imports take a second.

The definitions are in the metastore. Its catalog, a SQLite file, names one metadata file per component; metadata files
are immutable, and every edit writes new ones. So the copy is valid exactly while the catalog names the metadata files
that were read for it. Nobody needs to keep it: a copy that is missing, outdated, damaged or of another format is not
used. Like the metastore, it contains only references to secrets.
"""

import json
import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from calve.definitions.objects import COMPONENTS, Definition, SinkState, read_statement
from calve.errors import CalveError
from calve.metastore.config import MetastoreConfig, below

FORMAT: Final = 1
"""Of the copy; another one is not used."""
NAMESPACE: Final = "metastore"
_CATALOG: Final = "calve"
_MOMENTS: Final = (
    "SELECT table_name, metadata_location FROM iceberg_tables WHERE catalog_name = ? AND table_namespace = ?"
)
_WAIT_SECONDS: Final = 2.0


@dataclass(frozen=True)
class DefinitionsCopy:
    """All definitions at one moment, oldest first."""

    moments: Mapping[str, str]
    """The metadata file of each component."""
    definitions: tuple[Definition, ...]

    def write(self, home: Path) -> None:
        """Replace the copy of a home folder; without it reads are slower, and that is all."""
        body = {
            "format": FORMAT,
            "moments": dict(self.moments),
            "definitions": [_body(d) for d in self.definitions],
        }
        part = _file(home).with_suffix(f".{os.getpid()}")
        with suppress(OSError):
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                json.dump(body, file)
            part.replace(_file(home))


def read_copy(home: Path, environment: Mapping[str, str]) -> DefinitionsCopy | None:
    """The copy of a home folder; None if it does not show the current definitions."""
    try:
        body = json.loads(_file(home).read_text(encoding="utf-8"))
        if body["format"] != FORMAT or body["moments"] != _current_moments(home, environment):
            return None
        return DefinitionsCopy(body["moments"], tuple(_definition(one) for one in body["definitions"]))
    except (OSError, sqlite3.Error, ValueError, KeyError, TypeError, RecursionError, CalveError):
        return None


def _current_moments(home: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The metadata files that the catalog of the metastore names, at one moment."""
    location = below(str(home), MetastoreConfig.load(home, environment).relative_path)
    database = Path(location.removeprefix("file://")) / "catalog.db"
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=rw", uri=True, timeout=_WAIT_SECONDS)) as connection:
        found = dict(connection.execute(_MOMENTS, (_CATALOG, NAMESPACE)).fetchall())
    return {name: found[name] for name in COMPONENTS.values()}


def _body(definition: Definition) -> dict[str, Any]:
    return {
        "uid": definition.uid,
        "version": definition.version,
        "sql": definition.statement.to_sql(),
        "uses": list(definition.uses),
        "owner": definition.owner,
        "standing": asdict(definition.standing),
    }


def _definition(body: Mapping[str, Any]) -> Definition:
    return Definition(
        uid=body["uid"],
        version=body["version"],
        statement=read_statement(body["sql"]),
        uses=tuple(body["uses"]),
        owner=body["owner"],
        standing=SinkState(**body["standing"]),
    )


def _file(home: Path) -> Path:
    return home / "definitions.copy"
