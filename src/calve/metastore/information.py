"""INFORMATION_SCHEMA.TABLES, COLUMNS and PARTITIONS: the component `tables` as rows, and a copy of them.

    units ──► lines of each data file ──► copy in the home folder ──► rows, sorted

The copy is read without Iceberg and Arrow, whose imports take a second (`information_units.py` writes it). It is valid
exactly while the catalog names the metadata file that it was made from. Nobody needs to keep it: a copy that is
missing, outdated, damaged or of another format is not used.
"""

import json
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from calve.metastore.catalog_file import current_metadata
from calve.metastore.config import MetastoreConfig

SCHEMA: Final = "INFORMATION_SCHEMA"
COMPONENT: Final = "tables"
_FORMAT: Final = 1

Columns = tuple[tuple[str, str], ...]
"""Names and types."""
Line = tuple[Any, ...]
FileLines = Mapping[str, list[Line]]
"""By the name of the view."""


@dataclass(frozen=True)
class InformationView:
    """A table of INFORMATION_SCHEMA."""

    columns: Columns
    order: Callable[[Line], Any]
    """Lines are sorted by it."""


def _typed(text: str) -> Columns:
    return tuple((name, kind) for name, _, kind in (one.partition(" ") for one in text.split(", ")))


_NAMED: Final = "TABLE_CATALOG STRING, TABLE_SCHEMA STRING, TABLE_NAME STRING"
VIEWS: Final[Mapping[str, InformationView]] = {
    "TABLES": InformationView(
        _typed(
            f"{_NAMED}, TABLE_TYPE STRING, TABLE_SOURCE STRING, LOCATION STRING, NUM_ROWS BIGINT, NUM_FILES BIGINT, "
            "SIZE_BYTES BIGINT, METADATA_LEVEL STRING, LAST_MODIFIED_TIME TIMESTAMP"
        ),
        lambda line: line[:3],
    ),
    "COLUMNS": InformationView(
        _typed(
            f"{_NAMED}, COLUMN_NAME STRING, ORDINAL_POSITION INT, DATA_TYPE STRING, MIN_VAL STRING, MAX_VAL STRING, "
            "NUM_NULLS BIGINT, NUM_VALUES BIGINT"
        ),
        lambda line: (*line[:3], line[4]),
    ),
    "PARTITIONS": InformationView(
        _typed(
            f"{_NAMED}, METADATA_KEY STRING, METADATA_TYPE STRING, METADATA_IDENTIFIER STRING, "
            "PARTITION_COLUMN STRING, PARTITION_VALUE STRING, LOCATION STRING, NUM_ROWS BIGINT, "
            "LAST_MODIFIED_TIME TIMESTAMP"
        ),
        lambda line: (*line[:3], line[3] or "", line[5] or ""),
    ),
}


@dataclass(frozen=True)
class InformationLines:
    """The rows of all views at one moment."""

    metadata: str
    """The metadata file of the component; empty if it does not exist."""
    files: Mapping[str, FileLines]
    """By the data file that they are made from, which never changes."""

    def of(self, view: str) -> list[Line]:
        """The rows of a view."""
        return sorted((line for lines in self.files.values() for line in lines[view]), key=VIEWS[view].order)

    def write(self, home: Path) -> None:
        """Replace the copy of a home folder; without it queries are slower, and that is all."""
        part = _file(home).with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        body = {"format": _FORMAT, "metadata": self.metadata, "files": self.files}
        with suppress(OSError):
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                json.dump(body, file, default=datetime.isoformat)
            part.replace(_file(home))


def current_lines(home: Path, config: MetastoreConfig) -> InformationLines | None:
    """The rows as they are now; None if the copy does not show them. Raises TransientError."""
    metadata = current_metadata(config, COMPONENT)
    if metadata == "":
        return InformationLines("", {})
    copied = None if metadata is None else last_copy(home)
    return copied if copied is not None and copied.metadata == metadata else None


def last_copy(home: Path) -> InformationLines | None:
    """The copy of a home folder, whether it is current or not; None if there is none that can be used."""
    try:
        body = json.loads(_file(home).read_text(encoding="utf-8"))
        if body["format"] != _FORMAT:
            return None
        files = {
            str(path): {name: [_line(view, line) for line in lines[name]] for name, view in VIEWS.items()}
            for path, lines in body["files"].items()
        }
        return InformationLines(str(body["metadata"]), files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _line(view: InformationView, values: list[Any]) -> Line:
    return tuple(
        datetime.fromisoformat(value) if kind == "TIMESTAMP" and value is not None else value
        for value, (_, kind) in zip(values, view.columns, strict=True)
    )


def _file(home: Path) -> Path:
    return home / "information.copy"
