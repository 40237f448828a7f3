"""Types from sampled values: chosen ones by example, and random ones that read back without a bad row."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T  # noqa: N812

from calve.infer.columns import columns_of_sample, inferred
from calve.infer.sample import Sample, Sampled, sampled
from calve.infer.value_types import MAX_DEPTH, InferenceNotes, declared, type_of_json, type_of_texts
from calve.records.documents import parsed
from calve.records.scalars import Settings
from calve.records.strict import Columns
from calve.sql.parser import parse
from calve.sql.statements import CreateSource


def type_of(*texts: str) -> tuple[str, str]:
    """The type of the JSON values in these texts, and the note about it."""
    notes = InferenceNotes()
    found = type_of_json([parsed(text) for text in texts], "v", notes)
    return declared(found), notes.by_column.get("v", "")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("1", "null", "-7"), "BIGINT"),
        (("9223372036854775807",), "BIGINT"),
        (("9223372036854775808",), "DECIMAL(38,0)"),
        (("1" * 39,), "STRING"),
        (("1", "2.5"), "DOUBLE"),
        (("12.50", "3.25"), "DECIMAL(18,2)"),
        (("12.5", "3.25"), "DOUBLE"),
        (("1e400", "2"), "STRING"),
        (("9007199254740993", "0.5"), "DECIMAL(38,1)"),
        (("true", "false"), "BOOLEAN"),
        (('"2026-01-31"', "null"), "DATE"),
        (('"2026-01-31T10:00:00Z"', '"2026-01-31T10:00:00.5+02:00"'), "TIMESTAMP"),
        (('"2026-01-31 10:00"', '"2026-01-31"'), "TIMESTAMP_NTZ"),
        (('"2026-02-30"',), "STRING"),
        (('"19.90"', '"-0.00"'), "DECIMAL(18,2)"),
        (('"19.9"', '"1.25"'), "STRING"),
        (('"007"',), "STRING"),
        (("[1, null]", "[]"), "ARRAY<BIGINT>"),
        (("[]",), "ARRAY<STRING>"),
        (("{}",), "MAP<STRING, STRING>"),
        (('{"a": 1}', '{"b c": {"from": true}}'), "STRUCT<a: BIGINT, `b c`: STRUCT<`from`: BOOLEAN>>"),
        (('{"a": 1, "A": 2}',), "MAP<STRING, BIGINT>"),
        (('{"": 1}',), "MAP<STRING, BIGINT>"),
        (tuple(json.dumps({f"k{n}": n}) for n in range(30)), "MAP<STRING, BIGINT>"),
    ],
)
def test_values_have_the_narrowest_type_that_is_safe(texts: tuple[str, ...], expected: str) -> None:
    assert type_of(*texts)[0] == expected


def test_what_a_sample_does_not_show_is_a_string_with_a_note() -> None:
    assert type_of("null") == ("STRING", "only null in the sample")
    assert type_of("1", '"x"', "{}") == ("STRING", "mixed: number, object, string")
    assert type_of("1767225600000") == (
        "BIGINT",
        "looks like ms since 1970: declare TIMESTAMP and EPOCH UNIT = 'ms'",
    )


def test_deep_nesting_ends_in_a_string() -> None:
    found = type_of("[" * 20 + "]" * 20)[0]
    assert found == "ARRAY<" * MAX_DEPTH + "STRING" + ">" * MAX_DEPTH


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1", None, "-20"], "BIGINT"),
        (["1", "2.5"], "DOUBLE"),
        (["1.50", "2.25"], "DECIMAL(18,2)"),
        (["true", "false"], "BOOLEAN"),
        (["007", "8"], "STRING"),
        (["+5"], "STRING"),
        (["2026-01-31"], "DATE"),
        ([None, None], "STRING"),
        ([""], "STRING"),
    ],
)
def test_texts_of_csv_files_are_numbers_only_if_they_are_written_like_numbers(
    texts: list[str | None], expected: str
) -> None:
    assert declared(type_of_texts(texts, "v", InferenceNotes())) == expected


# ---- random ones

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
moments = st.datetimes().map(lambda found: found.isoformat())
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False, places=2).map(lambda found: f"{found}"),
    st.dates().map(lambda found: found.isoformat()),
    moments,
    moments.map(lambda found: f"{found}Z"),
    texts,
)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12
)


def one_kind() -> st.SearchStrategy[st.SearchStrategy[Any]]:
    """Strategies whose values all have one type, as the columns of a table do."""
    flat = [
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.dates().map(lambda found: found.isoformat()),
        moments,
        moments.map(lambda found: f"{found}+02:00"),
        texts,
    ]
    nested = st.recursive(
        st.sampled_from([st.none() | kind for kind in flat]),
        lambda inner: (
            inner.map(lambda kind: st.lists(kind, max_size=3))
            | st.dictionaries(texts, inner, min_size=1, max_size=3).map(st.fixed_dictionaries)
        ),
        max_leaves=4,
    )
    return st.dictionaries(texts, nested, min_size=1, max_size=4).map(st.fixed_dictionaries)


def check_reads_back(records: list[dict[str, Any]]) -> None:
    lines = [json.dumps(record) for record in records]
    sample = Sample("", tuple(sampled(line) for line in lines))
    notes = InferenceNotes()
    found = columns_of_sample(sample, None, (), notes)
    if not any(name and not name.lower().startswith("_calve") for name in found):
        return
    result = inferred(sample, found, (), None, notes)
    assert result.problems == ()
    fields = [T.StructField(name, kind) for name, kind in found.items()]
    columns = Columns.of(fields, Settings())
    for line in lines:
        values = dict(zip(columns.names, columns.values(parsed(line)), strict=True))
        given = parsed(line)
        assert {name for name, value in values.items() if value is not None} == {
            name for name, value in given.items() if value is not None
        }
    check_declarable(found)


def check_declarable(found: dict[str, T.DataType]) -> None:
    """The types are what CREATE SOURCE accepts, in its canonical form."""
    for kind in found.values():
        (statement,) = parse(f"CREATE SOURCE s (c {declared(kind)}) FROM FILES (PATH = 'p', FORMAT = 'json')")
        assert isinstance(statement, CreateSource)
        assert statement.columns[0].type == declared(kind)


@pytest.mark.long
@given(st.lists(st.dictionaries(texts, anything, min_size=1, max_size=5), min_size=1, max_size=6))
@settings(max_examples=150, deadline=None)
def test_any_objects_are_read_without_bad_rows_by_the_columns_inferred_from_them(
    records: list[dict[str, Any]],
) -> None:
    check_reads_back(records)


@pytest.mark.long
@given(st.data())
@settings(max_examples=100, deadline=None)
def test_rows_of_a_schema_are_read_without_bad_rows_by_the_columns_inferred_from_them(data: st.DataObject) -> None:
    kind = data.draw(one_kind())
    check_reads_back(data.draw(st.lists(kind, min_size=1, max_size=6)))


csv_cells = st.one_of(
    st.none(),
    st.integers().map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=2).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(str),
    st.booleans().map(lambda found: str(found).lower()),
    moments,
    texts,
)


@given(st.lists(csv_cells, min_size=1, max_size=6))
@settings(max_examples=150, deadline=None)
def test_texts_are_read_without_bad_rows_by_the_type_inferred_from_them(cells: list[str | None]) -> None:
    kind = type_of_texts(cells, "v", InferenceNotes())
    columns = Columns.of([T.StructField("v", kind)], Settings())
    for cell in cells:
        (value,) = columns.values({"v": cell})
        assert (value is None) == (cell is None)


def test_a_record_that_no_column_can_read_is_reported() -> None:
    sample = Sample("", (Sampled({"v": "\ud800"}), Sampled({"v": "fine"})))
    notes = InferenceNotes()
    found = inferred(sample, columns_of_sample(sample, None, (), notes), (), None, notes)
    assert len(found.problems) == 1
    assert "1 record of the sample cannot be read" in found.warnings()[0]
