"""The fields of a manifest's data file that pyiceberg has no names for: those of deletion vectors and of row lineage.

Deletes are identified by `content_id` and never by their path: several deletion vectors may share a Puffin file.
"""

from typing import Any

from pyiceberg.manifest import DataFile, FileFormat

from calve.model.scan import ContentId

_REFERENCED, _OFFSET, _LENGTH = 17, 18, 19
"""Their places in a record with all fields of format version 3; records that were made for version 2 are shorter."""


def content_id(file: DataFile) -> ContentId:
    """What an entry refers to: a file or, of a Puffin file, one deletion vector in it."""
    if file.file_format is not FileFormat.PUFFIN:
        return ContentId(file.file_path)
    return ContentId(
        file.file_path, _field(file, _OFFSET) or 0, _field(file, _LENGTH) or 0, referenced_data_file(file) or ""
    )


def referenced_data_file(file: DataFile) -> str | None:
    """The one data file that deletes state to refer to."""
    found = _field(file, _REFERENCED)
    return None if found is None else str(found)


def _field(file: DataFile, place: int) -> Any:
    return file[place] if place < len(file) else None
