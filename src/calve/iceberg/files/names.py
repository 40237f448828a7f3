"""Names of the files that calve writes for a table: `calve-t<mark>-...`, where the mark is part of the table's UUID.

Orphan removal recognizes files of a table by their names: without the mark, files of a table that shares the folder
would look the same. The letter before the mark separates such names from those of older versions of calve, which
continue with a number or a UUID.
"""

import re
from uuid import UUID

OWN_PREFIX = "calve-"
"""The prefix of file names that calve writes, in all versions."""

_MARK_DIGITS = 8
_LIST = "snap-"
_MARKED = re.compile(rf"{OWN_PREFIX}t([0-9a-f]{{{_MARK_DIGITS}}})-")


def table_mark(table_uuid: UUID) -> str:
    """The part of a table's UUID that the names of its files contain."""
    return table_uuid.hex[:_MARK_DIGITS]


def own_name(mark: str, rest: str) -> str:
    """The name of a new file of the table with this mark; `rest` makes it unique."""
    return f"{OWN_PREFIX}t{mark}-{rest}" if mark else f"{OWN_PREFIX}{rest}"


def list_name(mark: str, snapshot_id: int, unique: str) -> str:
    """The name of a manifest list."""
    return own_name(mark, f"{_LIST}{snapshot_id}-{unique}.avro")


def is_written_by_calve(name: str) -> bool:
    """Whether calve, in any version, wrote a file with this name."""
    return name.startswith(OWN_PREFIX)


def mark_in(path: str) -> str | None:
    """The mark in a path below a table's folder: of the file, or of a folder of calve's that contains it."""
    for part in path.split("/"):
        found = _MARKED.match(part)
        if found:
            return found[1]
    return None


def is_list(name: str) -> bool:
    """Whether a file is a manifest list, of any writer. Only the snapshot of one commit attempt refers to it."""
    found = _MARKED.match(name)
    return name[found.end() if found else 0 :].startswith(_LIST) and name.endswith(".avro")
