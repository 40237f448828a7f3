from pathlib import Path

import pytest

import calve
from calve.errors import InvalidInput
from calve.model.spec import Deletes
from calve.runtime.api import Sink


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    into = calve.connect(home=tmp_path).table("shop.orders")
    return calve.sink(calve.orders(), name="orders", into=into, key=["id"])


def test_rows_are_deleted_by_position_unless_told_otherwise(sink: Sink) -> None:
    assert sink.spec.deletes is Deletes.POSITION
    equality = sink.options(deletes="equality")
    assert equality.spec.deletes is Deletes.EQUALITY
    assert equality.options(compression="zstd").spec.deletes is Deletes.EQUALITY, "other options leave it"


@pytest.mark.parametrize(
    ("encoding", "error"),
    [("vector", 'deletes="vector" is not supported yet'), ("places", 'unknown encoding deletes="places"')],
)
def test_an_encoding_that_cannot_be_written_is_told(sink: Sink, encoding: str, error: str) -> None:
    with pytest.raises(InvalidInput, match=error) as told:
        sink.options(deletes=encoding)
    assert told.value.hint == "Use one of 'equality', 'position'."
