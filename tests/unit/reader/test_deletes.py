"""Which rows are left, by the rules of the specification: sequence numbers, partitions, specs, kinds of deletes."""

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

import calve.reader.deletes
from calve.iceberg.schema.readable import ReadTarget
from calve.model.files import WrittenFile
from calve.model.scan import DeleteFile, DeleteKind, ScanFile
from calve.reader.deletes import TaskDeletes, positions_by_path
from calve.reader.local import read_here
from tests.support.foreign import ForeignTable, in_order

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "region", StringType(), required=False),
    NestedField(3, "v", IntegerType(), required=False),
)
BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[ForeignTable]:
    table = ForeignTable(tmp_path, SCHEMA)
    yield table
    table.close()


@pytest.fixture
def parted(tmp_path: Path) -> Iterator[ForeignTable]:
    """Partitioned by region; spec 1 is unpartitioned."""
    table = ForeignTable(tmp_path, SCHEMA, BY_REGION)
    with table.table.update_spec() as update:
        update.remove_field("region")
    yield table
    table.close()


def row(number: int | None, region: str | None = "eu", v: int | None = 0) -> dict[str, Any]:
    return {"id": number, "region": region, "v": v}


def ids(table: ForeignTable, **at: Any) -> list[int]:
    return sorted(r["id"] for r in table.rows(**at))


def test_equality_deletes_reach_older_data_only(plain: ForeignTable) -> None:
    plain.commit(plain.data([row(1), row(2)]))
    plain.commit(plain.data([row(1, v=9)]), plain.equality(["id"], [{"id": 1}]))
    assert in_order(plain.rows()) == in_order([row(2), row(1, v=9)])


def test_null_equals_null_in_equality_deletes(plain: ForeignTable) -> None:
    plain.commit(plain.data([row(None), row(1, None), row(2)]))
    plain.commit(plain.equality(["id"], [{"id": None}]), plain.equality(["id", "region"], [{"id": 1, "region": None}]))
    assert plain.rows() == [row(2)]


def test_equality_deletes_of_several_field_sets_all_apply(plain: ForeignTable) -> None:
    plain.commit(plain.data([row(1, "eu", 1), row(2, "us", 2), row(3, "us", 3), row(4, "asia", 4)]))
    plain.commit(
        plain.equality(["id"], [{"id": 1}]),
        plain.equality(["region", "v"], [{"region": "us", "v": 3}, {"region": "asia", "v": 3}]),
        plain.equality(["v", "region"], [{"region": "asia", "v": 4}]),
    )
    assert plain.rows() == [row(2, "us", 2)]


def test_keys_need_not_be_among_the_columns(plain: ForeignTable) -> None:
    plain.commit(plain.data([row(1, v=1), row(2, v=2)]))
    plain.commit(plain.equality(["id"], [{"id": 1}]))
    assert plain.rows(columns=["v"]) == [{"v": 2}]


def test_equality_deletes_of_a_partition_stay_in_it(parted: ForeignTable) -> None:
    parted.commit(
        parted.data([row(1)], ["eu"], spec_id=0),
        parted.data([row(1, "us")], ["us"], spec_id=0),
        parted.data([row(1, "x")]),
    )
    parted.commit(parted.equality(["id"], [{"id": 1}], ["eu"], spec_id=0))
    assert in_order(parted.rows()) == in_order([row(1, "us"), row(1, "x")])


def test_equality_deletes_without_a_partition_reach_all_of_them(parted: ForeignTable) -> None:
    parted.commit(parted.data([row(1), row(2)], ["eu"], spec_id=0), parted.data([row(1, None)], [None], spec_id=0))
    parted.commit(parted.equality(["id"], [{"id": 1}], spec_id=1))
    assert parted.rows() == [row(2)]


def test_position_deletes_reach_data_of_the_same_commit(plain: ForeignTable) -> None:
    data = plain.data([row(1), row(2), row(3)])
    plain.commit(data, plain.positions([(data, 0), (data, 2)]))
    assert ids(plain) == [2]


def test_position_deletes_reach_no_newer_data(plain: ForeignTable) -> None:
    later = plain.data([row(1), row(2)])
    plain.commit(plain.positions([(later, 0)]))
    plain.commit(later)
    assert ids(plain) == [1, 2]


def test_position_deletes_for_many_files_are_told_apart(plain: ForeignTable) -> None:
    files = [plain.data([row(10 * n + i) for i in range(3)]) for n in range(3)]
    plain.commit(*files)
    plain.commit(plain.positions([(files[0], 0), (files[2], 2)]), plain.positions([(files[0], 0), (files[0], 1)]))
    assert ids(plain) == [2, 10, 11, 12, 20, 21]


@pytest.mark.parametrize("ascending", [False, True])
def test_positions_are_found_whether_or_not_those_of_a_file_follow_each_other(
    tmp_path: Path, *, ascending: bool
) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        rows = [(rng.choice("abcd"), position) for position in range(rng.choice([0, 1, 40]))]
        rows = sorted(rows) if ascending else rows
        path = tmp_path / f"{seed}.parquet"
        columns = {"file_path": [name for name, _ in rows], "pos": [position for _, position in rows]}
        schema = pa.schema([("file_path", pa.string()), ("pos", pa.int64())])
        pq.write_table(pa.table(columns, schema), path, row_group_size=7)
        for wanted in (None, ["c", "z", "a"]):
            found = positions_by_path(path.as_uri(), {}, wanted)
            names = {name for name, _ in rows if wanted is None or name in wanted}
            expected = {name: [position for one, position in rows if one == name] for name in names}
            assert {name: positions.tolist() for name, positions in found.items()} == expected


def test_threads_that_need_the_same_deletes_read_their_file_once(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, reads = 8, list[str]()
    began = Barrier(threads)

    def read(location: str, _: object, wanted: Sequence[str]) -> dict[str, Any]:
        reads.append(location)
        return dict.fromkeys(wanted, np.arange(3))

    def ask(deletes: TaskDeletes, path: str) -> list[int]:
        began.wait(timeout=60)
        return list(deletes.positions_in(delete, path))

    monkeypatch.setattr(calve.reader.deletes, "positions_by_path", read)
    delete = DeleteFile(DeleteKind.POSITION, "deletes", 1, 3, 1)
    for _ in range(20):
        files = [ScanFile(f"data{number}", 1, 3, 1, deletes=(delete,)) for number in range(threads)]
        deletes = TaskDeletes(ReadTarget(pa.schema([])), files)
        with ThreadPoolExecutor(threads) as pool:
            asked = [pool.submit(ask, deletes, file.path) for file in files]
            assert [one.result() for one in asked] == [[0, 1, 2]] * threads
    assert len(reads) == 20


def test_positions_count_over_row_groups(plain: ForeignTable) -> None:
    data = plain.data([row(n) for n in range(100)], row_group_size=7)
    plain.commit(data)
    plain.commit(
        plain.positions([(data, n) for n in range(0, 100, 3)]), plain.equality(["id"], [{"id": 50}, {"id": 51}])
    )
    assert sorted(r["id"] for r in plain.rows()) == [n for n in range(100) if n % 3 and n not in {50, 51}]


def test_a_dropped_column_goes_on_deleting(plain: ForeignTable) -> None:
    plain.commit(plain.data([row(1, v=1), row(2, v=2)]))
    plain.commit(plain.equality(["v"], [{"v": 1}]))
    with plain.table.update_schema() as update:
        update.delete_column("v")
    assert plain.rows() == [{"id": 2, "region": "eu"}]


def test_a_widened_key_matches_its_older_self(plain: ForeignTable) -> None:
    plain.commit(plain.data([row(1, v=1), row(2, v=2), row(3, v=3)]))
    plain.commit(plain.equality(["v"], [{"v": 1}]))
    with plain.table.update_schema() as update:
        update.update_column("v", field_type=LongType())
    plain.commit(plain.equality(["v"], [{"v": 2}]))
    assert ids(plain) == [3]


def test_a_key_that_older_files_lack_is_null_there(plain: ForeignTable) -> None:
    plain.commit(plain.data([row(1)]))
    with plain.table.update_schema() as update:
        update.add_column("added", StringType())
    plain.commit(plain.data([{**row(2), "added": "x"}]))
    plain.commit(plain.equality(["added"], [{"added": None}]))
    assert ids(plain) == [2]


def test_files_of_deletes_that_cannot_matter_are_not_read(plain: ForeignTable) -> None:
    plain.commit(plain.data([row(n) for n in range(10)]))
    plain.commit(plain.equality(["id"], [{"id": 100}]), plain.equality(["id"], [{"id": 5}]))
    assert [d.rows for f in read_here(plain.ref).plan.files for d in f.deletes] == [1]
    assert len(ids(plain)) == 9


Change = tuple[str, Sequence[Any]]
values = st.tuples(st.sampled_from([None, 1, 2, 3]), st.sampled_from([None, "eu", "us"]), st.sampled_from([None, 1, 2]))
FIELDS = ("id", "region", "v")
changes = st.one_of(
    st.tuples(st.just("data"), st.lists(values, min_size=1, max_size=6)),
    st.tuples(
        st.just("equality"),
        st.tuples(
            st.lists(st.sampled_from(FIELDS), min_size=1, max_size=3, unique=True),
            st.lists(values, min_size=1, max_size=3),
        ),
    ),
    st.tuples(st.just("positions"), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=4)),
)


@pytest.mark.long
@settings(max_examples=25)
@given(commits=st.lists(st.lists(changes, min_size=1, max_size=3), min_size=1, max_size=5))
def test_random_tables_read_as_the_rules_say(
    tmp_path_factory: pytest.TempPathFactory, commits: list[list[Change]]
) -> None:
    table = ForeignTable(tmp_path_factory.mktemp("random"), SCHEMA)
    written: list[tuple[WrittenFile, int, list[dict[str, Any]]]] = []
    gone: set[tuple[str, int]] = set()
    for sequence, commit in enumerate(commits, start=1):
        files: list[WrittenFile] = []
        for kind, what in commit:
            if kind == "data":
                rows = [dict(zip(FIELDS, value, strict=True)) for value in what]
                files.append(table.data(rows))
                written.append((files[-1], sequence, rows))
            elif kind == "equality":
                names, keys = what
                deleted = [dict(zip(FIELDS, key, strict=True)) for key in keys]
                files.append(table.equality(names, [{n: key[n] for n in names} for key in deleted]))
                gone |= {
                    (file.path, place)
                    for file, older, rows in written
                    if older < sequence
                    for place, found in enumerate(rows)
                    if any(all(found[n] == key[n] for n in names) for key in deleted)
                }
            else:
                places = [(written[n % len(written)], at) for n, at in what if written]
                places = [(one, at) for one, at in places if at < len(one[2])]
                if places:
                    files.append(table.positions([(one[0], at) for one, at in places]))
                    gone |= {(one[0].path, at) for one, at in places}
        table.commit(*files)
    left = [r for file, _, rows in written for place, r in enumerate(rows) if (file.path, place) not in gone]
    assert in_order(table.rows()) == in_order(left)
    table.close()
