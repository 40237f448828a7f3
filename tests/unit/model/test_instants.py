"""Any number may be where milliseconds should be: in metadata of tables, in arguments."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calve.errors import InvalidInput
from calve.model.instants import datetime_at, datetime_of, instant_text, millis_of

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


@given(st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31), timezones=st.timezones()))  # noqa: DTZ001 - bounds
def test_a_moment_is_in_the_millisecond_that_began_before_it(moment: datetime) -> None:
    """A record of Kafka has the millisecond in which it was made: reading from that moment on includes it."""
    began = datetime_at(millis_of(moment))
    assert began is not None
    assert timedelta(0) <= moment - began < timedelta(milliseconds=1)


def test_all_other_numbers_of_milliseconds_are_converted_in_one_place() -> None:
    source = Path(__file__).parents[3] / "src" / "calve"
    texts = {str(path.relative_to(source)): path.read_text() for path in source.rglob("*.py")}
    assert {file for file, text in texts.items() if "fromtimestamp(" in text} == OWN_CLOCK
    rounded = {file for file, text in texts.items() if ".timestamp() *" in text}
    assert not rounded, "rounds to another millisecond than millis_of"
