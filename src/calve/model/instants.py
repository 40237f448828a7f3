"""Points in time as users write them."""

from datetime import UTC, datetime

from calve.errors import InvalidInput
from calve.model.numbers import whole_number


def instant_ms(given: datetime | str | int) -> int:
    """Milliseconds since 1970 of a moment: ISO 8601 text, a datetime, or these milliseconds. UTC unless it has a zone.

    Raises InvalidInput.

    >>> instant_ms("2023-11-14 22:13:20"), instant_ms("2023-11-14T23:13:20+01:00"), instant_ms(1_700_000_000_000)
    (1700000000000, 1700000000000, 1700000000000)
    """
    if isinstance(given, datetime):
        moment = given if given.tzinfo is not None else given.replace(tzinfo=UTC)
        return int(moment.timestamp() * 1000)
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
