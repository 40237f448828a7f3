"""Durations and sizes, which options hold as text: '1h 2m 30s', '500ms', '1 minute', '512MB', '512MiB'.

The errors quote only the text; callers add the option and its place.
"""

import re
from datetime import timedelta
from fractions import Fraction

from calve.errors import InvalidInput

_MILLIS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_DURATION_UNITS = {
    **dict.fromkeys(("d", "day", "days"), "d"),
    **dict.fromkeys(("h", "hr", "hour", "hours"), "h"),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("ms", "millis", "millisecond", "milliseconds"), "ms"),
}
_BYTES = {
    "B": 1,
    **{f"{prefix}B": 1000 ** (index + 1) for index, prefix in enumerate("KMGTP")},
    **{f"{prefix}iB": 1024 ** (index + 1) for index, prefix in enumerate("KMGTP")},
}
_SIZE_UNITS = {unit.lower(): unit for unit in _BYTES} | {"byte": "B", "bytes": "B"}

_PART = re.compile(r"\s*+([0-9]{1,18}+(?:\.[0-9]{1,9}+)?+)\s*+([^\W\d]*+)\s*+")
_DURATION_HINT = "Write durations like '1h 2m 30s', '500ms' or '1 minute'; units are d, h, m, s and ms."
_SIZE_HINT = "Write sizes like '512MB' (10^6 bytes) or '512MiB' (2^20 bytes); units are B, kB to PB, and KiB to PiB."

_MILLISECOND = timedelta(milliseconds=1)
_LONGEST = timedelta(days=36_500)
"""A hundred years: adding it to any timestamp does not overflow, and threads can wait that long."""


def parse_duration(text: str) -> timedelta:
    """Parse a duration of whole milliseconds, zero included. Raises InvalidInput."""
    millis, seen, offset = Fraction(0), set[str](), 0
    while offset < len(text) or not seen:
        match = _PART.match(text, offset)
        if match is None:
            raise _not_a_duration(text)
        number, word = match.groups()
        unit = _DURATION_UNITS.get(word.lower())
        if unit is None:
            reason = f'The unit "{_clipped(word)}" is not known.' if word else "The unit is missing."
            raise _not_a_duration(text, reason)
        if unit in seen:
            raise _not_a_duration(text, f'The unit "{unit}" appears twice.')
        seen.add(unit)
        millis += Fraction(number) * _MILLIS[unit]
        offset = match.end()
    return _whole_millis(text, millis)


def _whole_millis(text: str, millis: Fraction) -> timedelta:
    if millis.denominator != 1:
        raise _not_a_duration(text, "It is finer than a millisecond.")
    if millis > _LONGEST / _MILLISECOND:
        raise _not_a_duration(text, f"The longest one is {_LONGEST.days} days.")
    return timedelta(milliseconds=int(millis))


def _not_a_duration(text: str, reason: str = "") -> InvalidInput:
    return InvalidInput(f'"{_clipped(text)}" is not a duration', detail=reason, hint=_DURATION_HINT)


def format_duration(duration: timedelta) -> str:
    """The shortest text that `parse_duration` reads as this duration: `1h 30m`."""
    left = duration // timedelta(milliseconds=1)
    if left < 0 or duration % timedelta(milliseconds=1):
        raise InvalidInput(f"{duration} is not a duration of whole milliseconds")
    parts = []
    for unit, millis in _MILLIS.items():
        count, left = divmod(left, millis)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts) or "0s"


def parse_size(text: str) -> int:
    """Parse a number of whole bytes. Raises InvalidInput."""
    match = _PART.fullmatch(text)
    if match is None:
        raise _not_a_size(text)
    number, word = match.groups()
    unit = _SIZE_UNITS.get(word.lower())
    if unit is None:
        raise _not_a_size(text, f'The unit "{_clipped(word)}" is not known.' if word else "The unit is missing.")
    size = Fraction(number) * _BYTES[unit]
    if size.denominator != 1:
        raise _not_a_size(text, "It is not a whole number of bytes.")
    return int(size)


def _not_a_size(text: str, reason: str = "") -> InvalidInput:
    return InvalidInput(f'"{_clipped(text)}" is not a size', detail=reason, hint=_SIZE_HINT)


def format_size(size: int) -> str:
    """The shortest text that `parse_size` reads as this many bytes: `512MB`, `64MiB`, `1000001B`."""
    if size < 0:
        raise InvalidInput(f"{size} is not a size")
    texts = [f"{size // factor}{unit}" for unit, factor in _BYTES.items() if size >= factor and size % factor == 0]
    return min(texts, key=len, default="0B")


def _clipped(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"
