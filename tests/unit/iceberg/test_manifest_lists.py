from pathlib import Path

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import read_manifest_list

from calve.catalog.failures import trying
from calve.errors import TransientError
from calve.iceberg.files import manifest_cache
from calve.iceberg.files.manifest_cache import ListHeader, ManifestCache, ManifestLine
from calve.iceberg.files.manifests import manifest_file
from calve.model.files import Content, FieldSummary, Manifest
from tests.unit.iceberg.sample import Sample

HEADER = ListHeader(snapshot_id=7, parent_id=None, sequence_number=3)


def line(number: int) -> ManifestLine:
    partitions = (FieldSummary(contains_null=False, contains_nan=None, lower=b"a", upper=None),)
    content = Content.DATA if number % 2 else Content.EQUALITY_DELETES
    manifest = Manifest(f"file:///m{number}.avro", 100 + number, 0, content, files=2, rows=20, partitions=partitions)
    return ManifestLine(manifest_file(manifest, snapshot_id=7, sequence_number=3))


@pytest.mark.parametrize("count", [0, 1, 3, 2500])
def test_a_list_reads_as_it_was_written(tmp_path: Path, count: int) -> None:
    io, location = PyArrowFileIO(), f"file://{tmp_path}/list.avro"
    lines = tuple(line(number) for number in range(count))
    ManifestCache().write_list(io, location, HEADER, lines)
    found = list(read_manifest_list(io.new_input(location)))
    assert [m[position] for m in found for position in range(13)] == [
        entry.manifest[position] for entry in lines for position in range(13)
    ]
    assert ManifestCache().read_list(io, location) == lines


def test_a_list_that_was_written_here_is_not_read_again(tmp_path: Path) -> None:
    io, location, lists = PyArrowFileIO(), f"file://{tmp_path}/list.avro", ManifestCache()
    lists.write_list(io, location, HEADER, [line(1)])
    (tmp_path / "list.avro").unlink()
    assert lists.read_list(io, location) == (line(1),)


def test_a_full_disk_says_so() -> None:
    with pytest.raises(TransientError, match="writing the list failed") as raised, trying("writing the list"):
        ManifestCache().write_list(PyArrowFileIO(), "file:///dev/full", HEADER, [line(1)])
    assert "free some space" in raised.value.hint


def test_manifests_that_left_the_table_leave_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_cache, "_SMALL_CACHE", 20)
    sample = Sample(tmp_path)
    for number in range(60):
        sample.commit({number: "a"})
    io, head = sample.table.io, sample.table.current_snapshot()
    manifests = ManifestCache()
    for number, one in enumerate(ManifestCache().lines_of(io, head)):
        manifests.entries_of(io, one.manifest)
        manifests.write_list(io, f"file://{tmp_path}/{number}.avro", HEADER, [one])
    sample.close()
    assert number > 30
    assert 4 <= len(manifests._entries) <= 24
    assert manifests._entry_count == sum(map(len, manifests._entries.values()))
