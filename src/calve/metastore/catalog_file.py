"""The SQLite file of a metastore's catalog, read without Iceberg, whose import takes a second.

The catalog names one metadata file per component. Metadata files are immutable, and every change of a component writes
a new one: what was read while the catalog named a file is valid as long as the catalog names that file.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from calve.errors import TransientError
from calve.metastore.config import MetastoreConfig, below
from calve.model.connection import DEFAULT_CATALOG_NAME

BUSY_SECONDS: Final = 30.0
_LOCATIONS: Final = (
    "SELECT table_name, metadata_location FROM iceberg_tables WHERE catalog_name = ? AND table_namespace = ?"
)


def database_of(config: MetastoreConfig) -> Path | None:
    """The file of the catalog; None if the metastore has another catalog."""
    remote = "://" in config.base_path and not config.base_path.startswith("file://")
    if config.catalog or remote:
        return None
    return Path(below(config.base_path, config.relative_path).removeprefix("file://")) / "catalog.db"


def connect(database: Path, mode: str = "rw") -> sqlite3.Connection:
    """Open the file. Raises sqlite3.Error (`naming`)."""
    return sqlite3.connect(f"{database.as_uri()}?mode={mode}", uri=True, timeout=BUSY_SECONDS)


def metadata_locations(connection: sqlite3.Connection, namespace: str) -> dict[str, str]:
    """The current metadata file of each component that exists."""
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'iceberg_tables'")
    return dict(connection.execute(_LOCATIONS, (DEFAULT_CATALOG_NAME, namespace))) if known.fetchone() else {}


def current_metadata(config: MetastoreConfig, component: str) -> str | None:
    """The current metadata file of a component; empty if it does not exist, None if only the catalog knows.

    Raises TransientError if the file is not in order.
    """
    database = database_of(config)
    if database is None:
        return None
    try:
        database.stat()
    except FileNotFoundError:
        return ""
    except OSError:
        return None  # opening the metastore reports it
    with naming(database, "metastore"), closing(connect(database)) as connection, connection:
        return metadata_locations(connection, config.namespace).get(component, "")


@contextmanager
def naming(database: Path, what: str) -> Iterator[None]:
    """Raise errors of SQLite as TransientError."""
    try:
        yield
    except sqlite3.Error as error:
        detail = f"{database}: {error}."
        if error.sqlite_errorname.startswith("SQLITE_READONLY"):
            raise TransientError(
                f"the {what} cannot be reached",
                detail=detail,
                hint="SQLite writes beside the file that it reads: let this process write to its folder.",
            ) from error
        raise TransientError(
            f"the {what} cannot be reached", detail=detail, hint="Check the file, and retry."
        ) from error
