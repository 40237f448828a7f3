from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.avro.file import AvroFile
from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestEntryStatus
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import IntegerType, ListType, LongType, NestedField, StringType

from calve.catalog.connect import connect_embedded
from calve.iceberg.files import manifests
from calve.iceberg.files.manifest_cache import live_entries
from calve.iceberg.files.manifests import manifest_file, manifest_place, write_existing, write_manifests
from calve.model.files import ColumnMetrics, Content, Manifest, WrittenFile
from tests.unit.iceberg.sample import Sample


def values(entry: ManifestEntry) -> tuple[object, ...]:
    partition = entry.data_file.partition
    return tuple(partition[index] for index in range(len(partition)))


def test_added_entries_inherit_snapshot_and_sequence_number(sample: Sample) -> None:
    table = sample.table
    (data, deletes) = sample.iceberg.write_manifests(sample.write({1: "a"}, deletes=[1, 2]), "c")
    assert (data.content, data.files, data.rows) == (Content.DATA, 1, 1)
    assert (deletes.content, deletes.files, deletes.rows) == (Content.EQUALITY_DELETES, 1, 2)
    listed = manifest_file(deletes, snapshot_id=77, sequence_number=5)
    assert listed.content == ManifestContent.DELETES
    for read in (listed.fetch_manifest_entry(table.io), live_entries(table.io, listed)):
        (entry,) = read
        assert (entry.status, entry.snapshot_id) == (ManifestEntryStatus.ADDED, 77)
        assert (entry.sequence_number, entry.file_sequence_number) == (5, 5)
        assert entry.data_file.equality_ids == [1]


def test_equality_ids_are_ints_and_the_header_says_deletes(sample: Sample) -> None:
    (_, deletes) = sample.iceberg.write_manifests(sample.write({1: "a"}, deletes=[1]), "c")
    with AvroFile[ManifestEntry](sample.table.io.new_input(deletes.path)) as file:
        assert file.schema.find_type("data_file.equality_ids") == ListType(136, IntegerType(), element_required=True)
        assert file.header.meta["content"] == "deletes"
        assert file.header.meta["format-version"] == "2"
        (entry,) = list(file)
        assert entry[1] is None
    assert Path(deletes.path.removeprefix("file://")).stat().st_size == deletes.length


def test_manifests_survive_their_record(sample: Sample) -> None:
    written = sample.iceberg.write_manifests(sample.write({1: "a"}, deletes=[1]), "c")
    assert tuple(Manifest.from_json(m.to_json()) for m in written) == written


def test_the_same_batch_written_again_has_other_names(sample: Sample) -> None:
    files = sample.write({1: "a"})
    first, second = (sample.iceberg.write_manifests(files, "same") for _ in range(2))
    assert first[0].path != second[0].path


def test_very_many_files_are_split(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "TARGET_BYTES", 20_000)
    (file,) = sample.write({1: "a"})
    many = [replace(file, path=f"{file.path}.{number}") for number in range(250)]
    for copy in many:
        Path(copy.path.removeprefix("file://")).touch()
    written = sample.iceberg.write_manifests(many, "c")
    assert len(written) == 3
    assert sum(m.files for m in written) == 250
    names = [e.data_file.file_path for m in written for e in live_entries(sample.table.io, manifest_file(m, 1, 1))]
    assert names == [f.path for f in many]


def test_partition_values_are_kept_and_summed_up(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "country", StringType()))
    spec = PartitionSpec(
        PartitionField(2, 1000, IdentityTransform(), "country"), PartitionField(1, 1001, BucketTransform(4), "bucket")
    )
    catalog = connect_embedded(tmp_path)
    catalog.create_namespace("n")
    table = catalog.create_table(("n", "t"), schema, partition_spec=spec)
    files = [
        WrittenFile(Content.DATA, f"file://{tmp_path}/f{n}", 1, 10, 0, partition, ColumnMetrics(), (4,))
        for n, partition in enumerate([("de", 3), ("at", 1), (None, 2)])
    ]
    for n in range(3):
        (tmp_path / f"f{n}").touch()
    (manifest,) = write_manifests(table, files, "c")
    country, bucket = manifest.partitions
    assert (country.contains_null, country.lower, country.upper) == (True, b"at", b"de")
    assert (bucket.lower, bucket.upper) == ((1).to_bytes(4, "little"), (3).to_bytes(4, "little"))
    entries = live_entries(table.io, manifest_file(manifest, 9, 4))
    assert [values(e) for e in entries] == [("de", 3), ("at", 1), (None, 2)]
    place = manifest_place(table, 0, ManifestContent.DATA, "merged.avro")
    merged = write_existing(place, entries, snapshot_id=10, sequence_number=6)
    again = live_entries(table.io, merged)
    assert [values(e) for e in again] == [("de", 3), ("at", 1), (None, 2)]
    assert {(e.status, e.snapshot_id, e.sequence_number) for e in again} == {(ManifestEntryStatus.EXISTING, 9, 4)}
    assert merged.partitions is not None
    assert merged.partitions[0].lower_bound == b"at"
    catalog.close()
