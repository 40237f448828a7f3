"""The order of rows that a table stores is that of certain fields: values of others cannot be compared with it."""

import pytest

from calve.errors import InvalidInput
from calve.iceberg.schema.evolution import Shape, StoredOrder, creation_properties, evolution
from calve.iceberg.sink_table import IcebergTable
from tests.unit.iceberg.sample import SINK, Sample


def ordered(sample: Sample, *fields: str, generation: int = 0) -> IcebergTable:
    shape = Shape(sample.table.schema(), order=StoredOrder(fields, generation))
    return IcebergTable(sample.table, SINK, ["id"], sample.clock, sample.ids, shape=shape)


def test_the_first_order_is_recorded_and_stays(sample: Sample) -> None:
    table = ordered(sample, "seq", "at")
    assert table.behind
    table.evolve(table.load())
    assert [one.behind for one in (table, ordered(sample, "seq", "at"))] == [False, False]


def test_other_fields_are_refused_until_the_table_is_rebuilt(sample: Sample) -> None:
    first = ordered(sample, "seq")
    first.evolve(first.load())
    with pytest.raises(InvalidInput, match=r"are ordered by seq(.|\n)*now orders by at(.|\n)*SNAPSHOT = true"):
        _ = ordered(sample, "at").behind
    rebuilt = ordered(sample, "at", generation=1)
    rebuilt.evolve(rebuilt.load())
    assert not ordered(sample, "at", generation=1).behind
    with pytest.raises(InvalidInput, match="are ordered by at"):
        _ = ordered(sample, "seq", generation=1).behind


def test_a_new_table_records_its_order(sample: Sample) -> None:
    order = StoredOrder(("source.lsn",))
    properties = creation_properties(SINK, (), order)
    assert creation_properties(SINK, ()) == {}
    metadata = sample.table.metadata.model_copy(update={"properties": properties})
    assert evolution(metadata, Shape(sample.table.schema(), order=order), SINK) == ()


@pytest.mark.parametrize("damaged", ["", "{", "[]", "{}", '{"fields": 1, "generation": 0}'])
def test_a_damaged_property_is_written_again(sample: Sample, damaged: str) -> None:
    properties = {f"calve.order-by.{SINK}": damaged}
    metadata = sample.table.metadata.model_copy(update={"properties": properties})
    assert evolution(metadata, Shape(sample.table.schema(), order=StoredOrder(("a",))), SINK)
