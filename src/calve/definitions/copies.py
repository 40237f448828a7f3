"""A copy of the definitions of a home folder, to read them without Iceberg and Arrow, whose imports take a second.

The definitions are in the metastore. Its catalog, a SQLite file, names one metadata file per component; metadata files
are immutable, and every edit writes new ones. So the copy is valid exactly while the catalog names the metadata files
that were read for it. Nobody needs to keep it: a copy that is missing, outdated, damaged or of another format is not
used. Like the metastore, it contains only references to secrets.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from calve.definitions.edits import from_json, to_json
from calve.definitions.objects import Definition
from calve.definitions.pending import PendingState
from calve.errors import CalveError
from calve.values import value

FORMAT: Final = 1
"""Of the copy; another one is not used."""


@value
class DefinitionsCopy:
    """The definitions of the metastore at one moment, oldest first, without pending edits."""

    metadata: Mapping[str, str]
    """The metadata file of each component."""
    definitions: tuple[Definition, ...]

    def write(self, home: Path) -> None:
        """Replace the copy of a home folder; without it reads are slower, and that is all."""
        body = {
            "format": FORMAT,
            "moments": dict(self.metadata),
            "definitions": [to_json(d) for d in self.definitions],
        }
        part = _file(home).with_suffix(f".{os.getpid()}")
        with suppress(OSError):
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                json.dump(body, file)
            part.replace(_file(home))


def read_copy(home: Path, moment: PendingState) -> list[Definition] | None:
    """The definitions of the metastore as they are at this moment; None if the copy does not show them."""
    if not moment.metadata:
        return []  # nothing was ever moved there
    try:
        body = json.loads(_file(home).read_text(encoding="utf-8"))
        if body["format"] != FORMAT or body["moments"] != moment.metadata:
            return None
        return [from_json(one) for one in body["definitions"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError, CalveError):
        return None


def _file(home: Path) -> Path:
    return home / "definitions.copy"
