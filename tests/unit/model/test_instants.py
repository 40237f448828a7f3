"""Any number may be where milliseconds should be: in metadata of tables, in arguments."""

from pathlib import Path

import pytest

from calve.errors import InvalidInput
from calve.model.instants import datetime_at, datetime_of, instant_text

OWN_CLOCK = {
    "cli/logs.py",
    "open_lineage.py",
    "iceberg/small_tables/dead_letters.py",
    "iceberg/small_tables/orphans.py",
}
"""They convert times of this machine's clock."""


@pytest.mark.parametrize("millis", [10**17, -(10**17), 10**30])
def test_a_number_that_is_no_moment_is_shown_or_refused(millis: int) -> None:
    assert instant_text(millis, " UTC") == f"{millis} ms"
    assert datetime_at(millis) is None
    with pytest.raises(InvalidInput, match="is not a point in time"):
        datetime_of(str(millis))


def test_all_other_numbers_of_milliseconds_are_converted_in_one_place() -> None:
    source = Path(__file__).parents[3] / "src" / "calve"
    found = {str(path.relative_to(source)) for path in source.rglob("*.py") if "fromtimestamp(" in path.read_text()}
    assert found == OWN_CLOCK | {"model/instants.py"}
