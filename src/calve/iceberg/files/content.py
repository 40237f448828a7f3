"""The fields of manifests and manifest lists that pyiceberg has no names for: deletion vectors and row lineage.

Deletes are identified by `content_id` and never by their path: several deletion vectors may share a Puffin file.

Rows have ids in tables of format version 3: a data file that states its first row id, or else inherits one from its
manifest, gives its rows consecutive ids. So whoever writes an entry again has to state what the entry inherited.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from pyiceberg.manifest import DataFile, FileFormat, ManifestContent, ManifestEntry, ManifestFile

from calve.model.scan import ContentId

_FIRST_ROW_ID, _REFERENCED, _OFFSET, _LENGTH = 16, 17, 18, 19
"""Their places in a record with all fields of format version 3; records that were made for version 2 are shorter."""
_MANIFEST_FIRST_ROW_ID = 15


def content_id(file: DataFile) -> ContentId:
    """What an entry refers to: a file or, of a Puffin file, one deletion vector in it."""
    if file.file_format is not FileFormat.PUFFIN:
        return ContentId(file.file_path)
    return ContentId(
        file.file_path, _field(file, _OFFSET) or 0, _field(file, _LENGTH) or 0, referenced_data_file(file) or ""
    )


def content_size(file: DataFile) -> int:
    """The size of a file or, of a Puffin file, that of the vector."""
    return file.file_size_in_bytes if file.file_format is not FileFormat.PUFFIN else content_id(file).length


def referenced_data_file(file: DataFile) -> str | None:
    """The one data file that deletes state to refer to."""
    found = _field(file, _REFERENCED)
    return None if found is None else str(found)


def first_row_id(file: DataFile) -> int | None:
    """The id of the first row of a data file, as its entry states or inherits it."""
    found = _field(file, _FIRST_ROW_ID)
    return None if found is None else int(found)


def needs_version_3(file: DataFile) -> bool:
    """Whether an entry has fields that a manifest of version 2 would lose, and that change what a reader sees."""
    return any(_field(file, place) is not None for place in (_FIRST_ROW_ID, _OFFSET, _LENGTH))


def first_row_id_of(manifest: ManifestFile) -> int | None:
    """The first row id of a manifest, as its manifest list states it."""
    found = _field(manifest, _MANIFEST_FIRST_ROW_ID)
    return None if found is None else int(found)


def with_first_row_id(manifest: ManifestFile, first_row_id: int) -> ManifestFile:
    """A copy of a line of a manifest list, with this id."""
    return ManifestFile(*(manifest[place] for place in range(_MANIFEST_FIRST_ROW_ID)), first_row_id)


def inherit_row_ids(entries: Iterable[ManifestEntry], manifest: ManifestFile) -> Iterator[ManifestEntry]:
    """Give the live entries of a manifest, in the order of the file, the first row ids that they inherit."""
    start = first_row_id_of(manifest)
    for entry in entries:
        file = entry.data_file
        if manifest.content is not ManifestContent.DELETES and len(file) > _FIRST_ROW_ID:
            if start is None:
                file[_FIRST_ROW_ID] = None
            elif file[_FIRST_ROW_ID] is None:
                file[_FIRST_ROW_ID] = start
                start += file.record_count
        yield entry


def _field(record: DataFile | ManifestFile, place: int) -> Any:
    return record[place] if place < len(record) else None
