"""The catalog of a home folder, asked through its SQLite file alone: the import of Iceberg would take a second.

An answer is `True`, or a list, only if it is certain; otherwise ask the catalog itself.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

from calve.model.connection import DEFAULT_CATALOG_NAME
from calve.model.spec import TableName

_WAIT_SECONDS = 2.0


def is_in_order(home: Path) -> bool:
    """Whether the catalog can be read, or is yet to be created."""
    return _tables(home) is not None


def is_new(home: Path, table: TableName) -> bool:
    """Whether there is no such table."""
    found = _tables(home)
    return found is not None and (".".join(table.namespace), table.name) not in {known[1:] for known in found}


def table_names(home: Path) -> list[tuple[str, str]] | None:
    """Namespace and name of the tables that the catalog shows, sorted; None if the file cannot be read."""
    found = _tables(home)
    return None if found is None else sorted(known[1:] for known in found if known[0] == DEFAULT_CATALOG_NAME)


def _tables(home: Path) -> set[tuple[str, str, str]] | None:
    """Catalog, namespace and name of all tables, whatever the catalog's name; None if the file cannot be read."""
    file = home.absolute() / "catalog.db"
    if not file.exists():
        return set()
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=rw", uri=True, timeout=_WAIT_SECONDS)) as connection:
            return set(connection.execute("SELECT catalog_name, table_namespace, table_name FROM iceberg_tables"))
    except sqlite3.Error:
        return None
