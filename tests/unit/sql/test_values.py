from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calve.errors import InvalidInput
from calve.sql.values import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("1h 2m 30s", 3_750_000),
        ("500ms", 500),
        ("1 minute", 60_000),
        ("20m", 1_200_000),
        ("2 Hours", 7_200_000),
        ("1d", 86_400_000),
        ("1h2m", 3_720_000),
        ("30s 1m", 90_000),
        (" 5 secs ", 5_000),
        ("1.5s", 1_500),
        ("0s", 0),
        ("0.001s", 1),
        ("2 days 1 millisecond", 172_800_001),
    ],
)
def test_durations_are_read(text: str, millis: int) -> None:
    assert parse_duration(text) == timedelta(milliseconds=millis)


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("", ""),
        ("fast", ""),
        ("20", "The unit is missing."),
        ("1h 20", "The unit is missing."),
        ("20 parsecs", 'The unit "parsecs" is not known.'),
        ("1month", 'The unit "month" is not known.'),
        ("1m 2m", 'The unit "m" appears twice.'),
        ("1m 2 minutes", 'The unit "m" appears twice.'),
        ("-1s", ""),
        ("1s,2m", ""),
        ("1:30", "The unit is missing."),
        ("0.5ms", "It is finer than a millisecond."),
        ("999999999999d", "The longest one is 36500 days."),
        ("36500d 1ms", "The longest one is 36500 days."),
        ("9999999999999999999s", ""),
        ("1s x", ""),
        ("\u0661s\u0662", ""),
    ],
)
def test_what_is_no_duration_is_refused_with_the_reason(text: str, detail: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_duration(text)
    assert caught.value.primary == f'"{text}" is not a duration'
    assert not detail or caught.value.detail == detail
    assert "'1h 2m 30s'" in caught.value.hint


@settings(max_examples=100)
@given(st.integers(0, 10**12))
def test_a_duration_is_written_as_it_is_read(millis: int) -> None:
    duration = timedelta(milliseconds=millis)
    assert parse_duration(format_duration(duration)) == duration


def test_durations_are_written_short() -> None:
    assert format_duration(timedelta(minutes=90)) == "1h 30m"
    assert format_duration(timedelta(0)) == "0s"
    assert format_duration(timedelta(milliseconds=1500)) == "1s 500ms"
    with pytest.raises(InvalidInput, match="whole milliseconds"):
        format_duration(timedelta(microseconds=1))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512MB", 512_000_000),
        ("512MiB", 512 * 2**20),
        ("1 kB", 1000),
        ("1KiB", 1024),
        ("1.5GB", 1_500_000_000),
        ("3 bytes", 3),
        ("7b", 7),
        ("0MB", 0),
        ("2tb", 2 * 10**12),
        ("1PiB", 2**50),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("", ""),
        ("big", ""),
        ("512", "The unit is missing."),
        ("512M", 'The unit "M" is not known.'),
        ("1MB 2kB", ""),
        ("-1MB", ""),
        ("1.5B", "It is not a whole number of bytes."),
    ],
)
def test_what_is_no_size_is_refused_with_the_reason(text: str, detail: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_size(text)
    assert caught.value.primary == f'"{text}" is not a size'
    assert not detail or caught.value.detail == detail
    assert "'512MB'" in caught.value.hint


@settings(max_examples=100)
@given(
    st.one_of(
        st.integers(0, 10**16),
        st.integers(0, 999).map(lambda n: n * 2**20),
        st.integers(0, 999).map(lambda n: n * 10**6),
    )
)
def test_a_size_is_written_as_it_is_read(size: int) -> None:
    assert parse_size(format_size(size)) == size


def test_sizes_are_written_short() -> None:
    assert [format_size(size) for size in (0, 512_000_000, 64 * 2**20, 1000, 1001)] == [
        "0B",
        "512MB",
        "64MiB",
        "1KB",
        "1001B",
    ]
    with pytest.raises(InvalidInput, match="not a size"):
        format_size(-1)


def test_a_long_text_is_cut_in_the_error() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_duration("x" * 1000)
    assert len(caught.value.primary) < 80
