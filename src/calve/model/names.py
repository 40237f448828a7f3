"""Names that users choose, and the folders and files that are named after them.

A name is any text that can be printed on one line. `path_segment` turns it into one level of a path: two names never
share a segment, and no segment points to another folder.
"""

import re
from urllib.parse import unquote

from calve.errors import InvalidInput

LONGEST = 200
"""Bytes of a segment: file systems allow 255, and suffixes are appended."""
_ESCAPED = frozenset("/\\#?%:*")
"""Characters with a meaning in paths and locations, here or on other systems."""
_CONSUMER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


def check_name(name: str, what: str) -> None:
    """Check that `name` can name `what` ("a sink", "a table"). Raises InvalidInput."""
    if not name or name.isspace():
        raise InvalidInput(f"the name of {what} is empty")
    if not name.isprintable():
        raise InvalidInput(
            f"the name of {what} contains an unprintable character",
            detail=f"Got {name[:LONGEST]!a}.",
            hint="Use letters, digits, spaces and punctuation.",
        )
    size = len(path_segment(name).encode())
    if size > LONGEST:
        raise InvalidInput(
            f"the name of {what} is too long",
            detail=f'"{name[:40]}..." takes {size} bytes as the name of a folder; the limit is {LONGEST}.',
        )


def check_consumer(name: str) -> None:
    """Check that `name` can name a consumer of a table: it is part of a tag. Raises InvalidInput."""
    if not _CONSUMER.fullmatch(name):
        raise InvalidInput(
            f'"{name}" is not a valid name for a consumer',
            hint="Use letters, digits and _, after the first also . and -; at most 64 characters.",
        )


def path_segment(name: str) -> str:
    """The path segment of a name: characters with a meaning in paths and locations are percent-encoded."""
    if name in {".", ".."}:
        return name.replace(".", "%2E")
    return "".join(c if c.isprintable() and c not in _ESCAPED else _escaped(c) for c in name)


def name_of_segment(segment: str) -> str:
    """The name that a segment encodes."""
    return unquote(segment)


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))
