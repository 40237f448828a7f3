import pytest
from hypothesis import given
from hypothesis import strategies as st

from calve.errors import InvalidInput
from calve.model.names import LONGEST, check_name, name_of_segment, path_segment

ODD = ["../../../x", "a/b", "[/x]", ".", "..", "a b", "a b#c?d%e", "a%2Fb", "ü", "a\\b", "c:d", ":smile:"]


@pytest.mark.long
@given(st.text(st.characters(codec="utf-8")))
def test_no_two_names_share_a_segment(name: str) -> None:
    segment = path_segment(name)
    assert name_of_segment(segment) == name
    assert not set("/#?\0") & set(segment)
    assert segment not in {".", ".."}


def test_odd_names_are_segments_of_their_own() -> None:
    assert len({path_segment(name) for name in ODD}) == len(ODD)
    for name in ODD:
        check_name(name, "a sink")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("a\nb", "contains an unprintable character"),
        ("a\0b", "contains an unprintable character"),
        ("\ud800", "contains an unprintable character"),
        ("a\u202eb", "contains an unprintable character"),
        ("x" * (LONGEST + 1), "is too long"),
        ("ü" * LONGEST, "is too long"),
        ("/" * LONGEST, "is too long"),
    ],
)
def test_what_cannot_be_a_name_is_refused(name: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=f"the name of a sink {problem}"):
        check_name(name, "a sink")


def test_the_longest_name_is_a_name() -> None:
    check_name("x" * LONGEST, "a table")
