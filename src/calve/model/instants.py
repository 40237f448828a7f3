"""Points in time: as users write them, and as they are shown. Tables may state any number of milliseconds."""

from datetime import UTC, datetime, timedelta

from calve.errors import InvalidInput
from calve.model.numbers import whole_number

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def instant_ms(given: datetime | str | int) -> int:
    """Milliseconds since 1970 of a moment: ISO 8601 text, a datetime, or these milliseconds. UTC unless it has a zone.

    Raises InvalidInput.

    >>> instant_ms("2023-11-14 22:13:20"), instant_ms("2023-11-14T23:13:20+01:00"), instant_ms(1_700_000_000_000)
    (1700000000000, 1700000000000, 1700000000000)
    """
    if isinstance(given, datetime):
        moment = given if given.tzinfo is not None else given.replace(tzinfo=UTC)
        return millis_of(moment)
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    text = given.strip() if isinstance(given, str) else given
    if isinstance(text, str):
        number = whole_number(text.removeprefix("-"))
        if number is not None:
            return -number if text.startswith("-") else number
        try:
            return instant_ms(datetime.fromisoformat(text))
        except (ValueError, OverflowError):
            pass
    raise InvalidInput(
        f'"{given}" is not a point in time',
        hint="Write '2026-11-17 13:30:00' in UTC, '2026-11-17T14:30:00+01:00', or milliseconds since 1970.",
    )


def millis_of(moment: datetime) -> int:
    """Whole milliseconds between 1970 and a moment, rounded down: what happened in one of them was not before it.

    >>> millis_of(datetime(1970, 1, 1, 0, 0, 1, 999_999, UTC)), millis_of(datetime(1969, 12, 31, 23, 59, 59, 1, UTC))
    (1999, -1000)
    """
    return (moment - _EPOCH) // _MILLISECOND


def datetime_of(given: datetime | str | int) -> datetime:
    """The same as a datetime. Raises InvalidInput, also for one that Python does not have."""
    found = datetime_at(instant_ms(given))
    if found is None:
        raise InvalidInput(f'"{given}" is not a point in time', hint="Write one of the years 1 to 9999.")
    return found


def datetime_at(millis: int) -> datetime | None:
    """The moment so many milliseconds after 1970; None for one that Python does not have."""
    try:
        return _EPOCH + timedelta(milliseconds=millis)
    except OverflowError:
        return None


def instant_text(millis: int, zone: str = "") -> str:
    """A moment in UTC to the second, and a word for the zone; a number that is none as it is.

    >>> instant_text(1_700_000_000_000, " UTC"), instant_text(10**17)
    ('2023-11-14 22:13:20 UTC', '100000000000000000 ms')
    """
    moment = datetime_at(millis)
    return f"{millis} ms" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}{zone}"
