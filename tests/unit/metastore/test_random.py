"""Random modifications of a component, against a dictionary."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calve.metastore import filters as f
from calve.metastore.tables import TableUnit, open_tables
from tests.support.readers import duckdb_rows
from tests.unit.metastore.sample import DELETE_AFTER_COMMIT, VERSIONS_MAX, metastore_at, segment
from tests.unit.metastore.test_expiry import referred, there

Model = dict[tuple[str, str], list[int]]

names, keys = st.sampled_from(["a", "b", "a/b"]), st.sampled_from(["x", "y", "z"])
overwrites = st.tuples(st.just("overwrite"), st.lists(st.tuples(names, keys), min_size=1, max_size=4))
deletes = st.tuples(
    st.just("delete"),
    st.one_of(
        st.builds(f.eq, st.just("table_name"), names),
        st.builds(f.ne, st.just("metadata_key"), keys),
        st.builds(f.none_of, st.just("metadata_key"), st.lists(keys, max_size=2)),
        st.builds(lambda name, key: f.eq("table_name", name) & ~f.eq("metadata_key", key), names, keys),
    ),
)
modifications = st.lists(st.lists(overwrites | deletes, min_size=1, max_size=3), min_size=1, max_size=6)


def unit(name: str, key: str, number: int) -> TableUnit:
    return replace(segment(key), table_name=name, last_modified_time=number)


@pytest.mark.long
@settings(max_examples=25)
@given(modifications, st.integers(1, 3))
def test_a_component_is_what_its_modifications_made_it(steps: list[list[tuple[str, object]]], versions: int) -> None:
    common = {DELETE_AFTER_COMMIT: "true", VERSIONS_MAX: str(versions)}
    model: Model = {}
    number = 0
    expected: list[tuple[tuple[str, str], int]] = []
    with tempfile.TemporaryDirectory() as folder, metastore_at(Path(folder), common=common) as metastore:
        tables = open_tables(metastore)
        for operations in steps:
            modify = tables.modify()
            for word, given_ in operations:
                if word == "delete":
                    condition: f.Filter = given_  # type: ignore[assignment]
                    modify.delete(condition)
                    rows = {at: {"table_name": at[0], "metadata_key": at[1]} for at in model}
                    model = {at: there_ for at, there_ in model.items() if not condition.outcome(rows[at])}
                    continue
                places: list[tuple[str, str]] = given_  # type: ignore[assignment]
                model |= {place: [] for place in places}
                for place in places:
                    number += 1
                    model[place].append(number)
                modify.overwrite(*(unit(*place, n) for place, n in _numbered(places, number)))
            modify.execute()
            expected = sorted((at, n) for at, numbers in model.items() for n in numbers)
            found = [((u.table_name, u.metadata_key), u.last_modified_time) for u in tables.read()]
            assert sorted(found, key=repr) == sorted(expected, key=repr)
            assert there(Path(folder)) == referred(tables)
        with metastore_at(Path(folder), common=common) as again:
            assert len(open_tables(again).read()) == len(expected)
        if tables.metadata().version:
            assert len(duckdb_rows(tables.see().table.metadata_location, ["table_name"])) == len(expected)


def _numbered(places: list[tuple[str, str]], last: int) -> list[tuple[tuple[str, str], int]]:
    return [(place, last - len(places) + 1 + position) for position, place in enumerate(places)]
