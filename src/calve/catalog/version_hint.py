"""`version-hint.text`: tells engines without a catalog (DuckDB, ClickHouse) the current metadata file of a table.

Only tables of the home folder's own catalog get one: any other catalog has other writers, which would leave it behind.
The hint is written after the catalog refers to the metadata file and before old metadata files are removed, so that it
always names a committed file that exists. If a process ends in between, it names an earlier one, until any process
loads the table or commits to it. That also repairs a hint that a power failure cut. A commit that was applied never
fails because of its hint.

Several processes may commit at once. A writer therefore looks at the catalog again after it has written a hint, and
writes the newer one: whoever writes last leaves the newest.
"""

import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier

from calve.catalog.embedded import EmbeddedCatalog, TableCommit

VERSION_HINT = "version-hint.text"
_ENDING = ".metadata.json"
_ATTEMPTS = 20
"""Each further one means that another process has committed in between."""

_log = logging.getLogger("calve")


class HomeCatalog(EmbeddedCatalog):
    """The catalog of a home folder, whose tables have version hints."""

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """As in any catalog; then the hint."""
        done = super().commit_table(table, requirements, updates)
        self._hint(table.name(), done.metadata_location)
        return done

    def commit_tables(self, commits: Sequence[TableCommit], unchanged: Sequence[Table] = ()) -> list[TableMetadata]:
        """As in any catalog; then the hints."""
        done = super().commit_tables(commits, unchanged)
        for commit in commits:
            location = self._location(commit.table.name())
            if location is not None:
                self._hint(commit.table.name(), location)
        return done

    def _loaded(self, name: Identifier) -> Table:
        table = super()._loaded(name)
        self._hint(name, table.metadata_location)
        return table

    def _hint(self, name: Identifier, location: str) -> None:
        try:
            for _ in range(_ATTEMPTS):
                write_hint(location)
                current = self._location(Catalog.identifier_to_tuple(name))
                if current is None or current == location:
                    return
                location = current
        except OSError as error:
            _log.warning("the version hint of table %s could not be written: %s", ".".join(name), error)


def write_hint(metadata_location: str) -> None:
    """Let the hint beside a metadata file name it, unless it does. Raises OSError."""
    file = _local(metadata_location)
    if file is None or not file.name.endswith(_ENDING):
        return
    hint = file.parent / VERSION_HINT
    version = file.name.removesuffix(_ENDING).removesuffix(".gz")
    try:
        if hint.read_text(encoding="utf-8") == version:
            return
    except (FileNotFoundError, UnicodeDecodeError):
        pass
    part = hint.with_name(f".{VERSION_HINT}.{os.getpid()}.{threading.get_ident()}")
    part.write_text(version, encoding="utf-8")  # not synced: that would cost every commit half of its time again
    part.replace(hint)


def _local(location: str) -> Path | None:
    """The path of a local file; None for files elsewhere."""
    scheme = urlsplit(location).scheme if "://" in location else ""
    return Path(location.removeprefix("file://")) if scheme in {"", "file"} else None
