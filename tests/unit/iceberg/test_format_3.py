"""What calve writes to tables of format version 3, read back by pyiceberg and DuckDB."""

import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.avro.file import AvroFile
from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import LongType, NestedField, StringType
from pyroaring import BitMap64

from calve.catalog.connect import connect_embedded
from calve.catalog.outcome import send
from calve.catalog.row_lineage import check_writable
from calve.clock import RandomIds, SystemClock
from calve.errors import CommitConflict, InvalidInput, TerminalError
from calve.iceberg.files.content import content_id, first_row_id_of
from calve.iceberg.files.manifest_cache import ManifestCache
from calve.iceberg.files.manifests import write_manifests
from calve.iceberg.files.vectors import (
    VECTOR_OFFSET,
    DeletedRows,
    bitmap_of,
    decode_vector,
    encode_vector,
    puffin_file,
    write_vectors,
)
from calve.iceberg.planning.key_scan import place_of
from calve.iceberg.sink_table import IcebergTable
from calve.iceberg.snapshot import draft as drafts
from calve.iceberg.snapshot.draft import SnapshotContents, new_draft, snapshot_change
from calve.iceberg.snapshot.history import new_summary
from calve.model.files import WrittenFile
from calve.model.scan import ScanFile
from tests.support.foreign import ForeignTable, in_order, live_entries_of
from tests.support.readers import duckdb_rows

COLUMNS = Schema(
    NestedField(1, "id", LongType(), required=True), NestedField(2, "name", StringType()), identifier_field_ids=[1]
)
FIRST_ROW_ID = 16
_names = count()


class Version3(ForeignTable):
    """A table of format version 3, and its rows as three readers see them."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, COLUMNS, properties={"format-version": "3"})

    def numbers(self, *ids: int) -> WrittenFile:
        """Write a data file with these rows."""
        return self.data([{"id": number, "name": f"n{number}"} for number in ids])

    def vector(self, file: WrittenFile, *positions: int) -> WrittenFile:
        """Write a vector of one data file."""
        scanned = ScanFile(file.path, file.size, file.record_count, 0, spec_id=file.spec_id, partition=file.partition)
        found = DeletedRows(scanned, BitMap64(positions))
        (written,) = write_vectors(place_of(self.table), [found], f"v{next(_names)}")
        return written

    def check(self, *ids: int) -> None:
        """Compare the rows of calve, pyiceberg and DuckDB with these."""
        wanted = in_order([{"id": number, "name": f"n{number}"} for number in ids])
        assert in_order(self.rows()) == wanted
        assert in_order(self.table.scan().to_arrow().to_pylist()) == wanted
        assert in_order(duckdb_rows(self.table.metadata_location)) == wanted

    def lines(self) -> list[ManifestFile]:
        """The manifest list of the head."""
        return [one.manifest for one in ManifestCache().all_lines_of(self.table.io, self.table.current_snapshot())]

    def first_row_ids(self) -> dict[str, int | None]:
        """The first row id of each data file of the head."""
        return {
            e.data_file.file_path: e.data_file[FIRST_ROW_ID] for e in live_entries_of(self) if not e.data_file.content
        }

    def json(self) -> dict[str, Any]:
        """The metadata file as it is."""
        found: dict[str, Any] = json.loads(Path(self.table.metadata_location.removeprefix("file://")).read_text())
        return found


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Version3]:
    found = Version3(tmp_path)
    yield found
    found.close()


POSITIONS = st.lists(
    st.one_of(st.integers(0, 3000), st.integers(2**32 - 3, 2**32 + 3), st.integers(0, 2**40)), min_size=1, unique=True
).map(sorted)


@given(POSITIONS)
def test_vectors_survive_their_file_whatever_their_positions(positions: Sequence[int]) -> None:
    blob = encode_vector(bitmap_of(np.array(positions, np.int64)))
    assert decode_vector(blob).tolist() == positions
    content = puffin_file(blob, "file:///a", len(positions))
    assert content[VECTOR_OFFSET : VECTOR_OFFSET + len(blob)] == blob


@given(st.lists(st.integers(0, 200_000), min_size=1, unique=True).map(sorted))
def test_pyiceberg_reads_the_same_vector(positions: Sequence[int]) -> None:
    content = puffin_file(encode_vector(bitmap_of(np.array(positions, np.int64))), "file:///a", len(positions))
    (found,) = deletion_vectors_from_puffin_file(PuffinFile(content))
    assert found.to_vector().to_pylist() == positions


def test_a_puffin_file_is_what_the_specification_says() -> None:
    blob = encode_vector(BitMap64([1, 2, 2**33]))
    content = puffin_file(blob, "s3://b/ä.parquet", 3)
    (length,) = struct.unpack_from(">I", blob)
    assert length == len(blob) - 8
    assert blob[4:8].hex() == "d1d33964"
    assert struct.unpack_from("<Q", blob, 8) == (2,)
    assert struct.unpack_from("<I", blob, 16) == (0,)
    assert struct.unpack(">I", blob[-4:]) == (zlib.crc32(blob[4:-4]),)
    assert content[:4] == content[-4:] == b"PFA1"
    (size,) = struct.unpack_from("<i", content, len(content) - 12)
    assert content[-8:-4] == bytes(4)
    start = len(content) - 12 - size
    assert content[start - 4 : start] == b"PFA1"
    assert start - 4 == 4 + len(blob)
    (described,) = json.loads(content[start : start + size])["blobs"]
    assert described == {
        "type": "deletion-vector-v1",
        "fields": [2147483645],
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": 4,
        "length": len(blob),
        "properties": {"referenced-data-file": "s3://b/ä.parquet", "cardinality": "3"},
    }


def test_rows_and_vectors_read_the_same_in_every_engine(table: Version3) -> None:
    first, second = table.numbers(1, 2, 3, 4), table.numbers(5, 6)
    table.commit(first, second)
    table.check(1, 2, 3, 4, 5, 6)
    old = table.vector(first, 0)
    table.commit(old, table.vector(second, 1))
    table.check(2, 3, 4, 5)
    table.exchange([old], table.vector(first, 0, 3), table.numbers(7))
    table.check(2, 3, 5, 7)
    summary = table.table.current_snapshot().summary.additional_properties  # type: ignore[union-attr]
    assert (summary["added-dvs"], summary["removed-dvs"], summary["total-delete-files"]) == ("1", "1", "2")
    assert (summary["added-position-deletes"], summary["removed-position-deletes"]) == ("2", "1")
    assert summary["total-position-deletes"] == "3"


def test_removing_one_of_two_vectors_of_a_file_keeps_the_other(table: Version3) -> None:
    first, second = table.numbers(1, 2), table.numbers(3, 4)
    table.commit(first, second)
    one, two = table.vector(first, 0), table.vector(second, 1)
    blobs = [Path(v.path.removeprefix("file://")).read_bytes()[4 : 4 + v.vector.length] for v in (one, two) if v.vector]
    shared = Path(one.path.removeprefix("file://"))
    shared.write_bytes(b"PFA1" + b"".join(blobs))
    moved = WrittenFile(
        **{**vars(two), "path": one.path, "vector": type(two.vector)(second.path, 4 + len(blobs[0]), len(blobs[1]))}  # type: ignore[misc]
    )
    table.commit(one, moved)
    assert [row["id"] for row in in_order(table.rows())] == [2, 3]
    table.exchange([one], table.vector(first, 0, 1))
    assert [row["id"] for row in in_order(table.rows())] == [3]
    live = {content_id(entry.data_file) for entry in live_entries_of(table)}
    assert moved.id in live
    assert one.id not in live


def test_every_row_gets_an_id_once(table: Version3) -> None:
    assert table.json()["next-row-id"] == 0
    assert "format-version" not in table.json()["properties"]
    first, second = table.numbers(1, 2, 3), table.numbers(4)
    table.commit(first, second)
    table.commit()
    third = table.numbers(5, 6)
    table.commit(third, table.vector(first, 1))
    written = table.json()
    assert [(s["first-row-id"], s["added-rows"]) for s in written["snapshots"]] == [(0, 4), (4, 0), (4, 2)]
    assert written["next-row-id"] == 6
    assert table.first_row_ids() == {first.path: 0, second.path: 3, third.path: 4}
    assert sorted((line.content, first_row_id_of(line)) for line in table.lines()) == [(0, 0), (0, 4), (1, None)]


def test_manifests_have_the_header_and_the_fields_of_version_3(table: Version3) -> None:
    file = table.numbers(1, 2)
    vector = table.vector(file, 1)
    table.commit(file)
    table.commit(vector)
    for line in table.lines():
        with AvroFile[ManifestEntry](table.table.io.new_input(line.manifest_path)) as avro:
            assert avro.header.meta["format-version"] == "3"
            (entry,) = list(avro)
            data_file = entry[4]
            assert avro.schema.find_field("data_file.first_row_id").field_id == 142
            later = [data_file[place] for place in range(16, 20)]
        if line.content:
            assert vector.vector is not None
            assert later == [None, file.path, 4, vector.vector.length]
            assert [data_file[place] for place in (*range(6, 12), 13, 14, 15)] == [None] * 9
        else:
            assert later == [None] * 4
    snapshot = table.table.current_snapshot()
    assert snapshot is not None
    with AvroFile[ManifestFile](table.table.io.new_input(snapshot.manifest_list)) as avro:
        assert avro.header.meta["format-version"] == "3"
        assert avro.header.meta["first-row-id"] == "2"
        assert avro.schema.find_field(520).name == "first_row_id"
        assert all(avro.schema.find_field(number).required for number in (504, 505, 506, 512, 513, 514))


def test_merged_manifests_keep_the_ids_of_rows(table: Version3, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [table.numbers(number, number + 1) for number in range(0, 8, 2)]
    for file in files:
        table.commit(file)
    table.commit(table.vector(files[1], 0))
    before = table.first_row_ids()
    monkeypatch.setattr(drafts, "FAN_IN", 3)
    merging = IcebergTable(table.table, "s", [], SystemClock(), RandomIds())
    assert merging.merge_manifests(merging.load())
    assert table.first_row_ids() == before
    assert {entry.status for entry in live_entries_of(table) if not entry.data_file.content} == {
        ManifestEntryStatus.EXISTING
    }
    assert None not in [first_row_id_of(line) for line in table.lines() if not line.content]
    written = table.json()
    last = written["snapshots"][-1]
    assert written["next-row-id"] == last["first-row-id"] + last["added-rows"]
    added = table.numbers(9)
    table.commit(added)
    assert table.first_row_ids()[added.path] == written["next-row-id"]
    table.check(0, 1, 3, 4, 5, 6, 7, 9)


def test_a_snapshot_made_on_an_older_state_of_the_table_is_a_conflict(table: Version3) -> None:
    table.commit(table.numbers(1))
    stale = table.table
    changes = []
    for _ in range(2):
        draft = new_draft(stale, SystemClock(), RandomIds(), "main")
        contents = SnapshotContents((), (), new_summary(Operation.APPEND, {}, draft.parent, {}))
        changes.append(snapshot_change(draft, contents, ManifestCache()))
    send(changes[0], "the first")
    with pytest.raises(CommitConflict, match="the second"):
        send(changes[1], "the second")


def _moved(change: Any, **values: int) -> Any:
    added = change.updates[0]
    snapshot = added.snapshot.model_copy(update=values)
    return type(change)(
        change.table, (), (added.model_copy(update={"snapshot": snapshot}), *change.updates[1:]), change.files
    )


@pytest.mark.parametrize("values", [{"first_row_id": 0}, {"first_row_id": 2}, {"sequence_number": 1}])
def test_row_ids_and_sequence_numbers_start_where_the_table_ended(table: Version3, values: dict[str, int]) -> None:
    table.commit(table.numbers(1))
    draft = new_draft(table.table, SystemClock(), RandomIds(), "main")
    contents = SnapshotContents((), (), new_summary(Operation.APPEND, {}, draft.parent, {}))
    change = _moved(snapshot_change(draft, contents, ManifestCache()), **values)
    with pytest.raises(CommitConflict):
        send(change, "a snapshot")


def test_metadata_with_unknown_fields_is_not_written_again(table: Version3) -> None:
    table.commit(table.numbers(1))
    check_writable(table.table)
    location = Path(table.table.metadata_location.removeprefix("file://"))
    changed = table.json()
    changed["snapshots"][0]["key-id"] = "k1"
    location.write_text(json.dumps(changed))
    again = connect_embedded(table.home)
    with pytest.raises(InvalidInput, match="does not know") as caught:
        check_writable(again.load_table(table.table.name()))
    assert "snapshots.key-id" in str(caught.value.detail)
    again.close()


def test_a_manifest_of_version_2_takes_no_vector(tmp_path: Path) -> None:
    plain = ForeignTable(tmp_path, COLUMNS)
    file = plain.data([{"id": 1, "name": "n1"}])
    vector = Version3.vector(plain, file, 0)  # type: ignore[arg-type]
    with pytest.raises(TerminalError, match="cannot hold deletion vectors"):
        write_manifests(plain.table, [vector], "c")
    plain.close()
