"""Numbers in text that others wrote: properties of tables and catalogs, names of files.

Python's own checks accept too much: `"²".isdigit()` is true and `int("²")` fails, `int` takes `1_000` and digits of
other scripts, and it refuses texts of thousands of digits. Such text must never stop a sink.
"""

import logging
from collections.abc import Mapping

_LARGEST = 2**63 - 1
_DIGITS = len(str(_LARGEST))

_log = logging.getLogger(__name__)
_warned: set[tuple[str, str]] = set()


def whole_number(text: str) -> int | None:
    """The number that a text of ASCII digits states, if it fits into 64 bits; else None."""
    if not (text.isascii() and text.isdigit()) or len(text) > _DIGITS:
        return None
    number = int(text)
    return number if number <= _LARGEST else None


def number_property(properties: Mapping[str, str], name: str, default: int) -> int:
    """A number among properties; the default if it is missing or invalid. An invalid one is a warning, once."""
    text = properties.get(name)
    if text is None:
        return default
    number = whole_number(text.strip())
    if number is not None:
        return number
    if (name, text) not in _warned:
        _warned.add((name, text))
        _log.warning("invalid property is ignored", extra={"property": name, "value": text, "default": default})
    return default
