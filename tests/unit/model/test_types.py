import pytest

from calve.model.types import TYPES, declared_type, leaves, spark_type, written_as


@pytest.mark.parametrize(
    ("declared", "found"),
    [
        ("INT", [("c", "INT")]),
        ("DECIMAL(12,2)", [("c", "DECIMAL(12,2)")]),
        ("ARRAY<DECIMAL(12,2)>", [("c.element", "DECIMAL(12,2)")]),
        ("MAP<STRING, ARRAY<INT>>", [("c.key", "STRING"), ("c.value.element", "INT")]),
        ("STRUCT<a: INT NOT NULL, b: STRUCT<c: DATE>>", [("c.a", "INT"), ("c.b.c", "DATE")]),
        ("STRUCT<`a, b<: ``x`: VARIANT, d: INT>", [("c.a, b<: `x", "VARIANT"), ("c.d", "INT")]),
    ],
)
def test_the_flat_types_inside_of_a_declared_one_have_their_names(declared: str, found: list[tuple[str, str]]) -> None:
    assert list(leaves(declared, "c")) == found


@pytest.mark.parametrize("name", ["decimal(39,0)", "decimal(5,-1)", "decimal(5,6)", "geometry(4326)", "udt", ""])
def test_a_type_that_no_table_holds_is_none(name: str) -> None:
    assert spark_type(name) is None


def test_what_is_written_is_what_spark_reads_back() -> None:
    for kind in TYPES:
        if kind.iceberg and not kind.nested and kind.iceberg not in {"decimal", "uuid", "time"}:
            assert written_as(kind.iceberg) == (kind.back or kind.sql).lower()
    assert written_as("decimal(12, 2)") == "decimal(12,2)"
    assert (written_as("uuid"), written_as("fixed[4]"), written_as("time")) == ("binary", "binary", "time(6)")
    assert written_as("timestamp_ns") is None


def test_parameters_do_not_matter_to_a_declared_type() -> None:
    assert [declared_type(text).sql for text in ("varchar(3)", "INTERVAL DAY", "TIMESTAMP_NTZ")] == [  # type: ignore[union-attr]
        "VARCHAR",
        "INTERVAL",
        "TIMESTAMP_NTZ",
    ]
