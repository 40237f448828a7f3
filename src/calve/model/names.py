"""Names that users choose, and the folders and files that are named after them.

A name is any text that can be printed on one line. Wherever one becomes a level of a path, `path_segment` does it: two
names never share a segment, and no segment leads elsewhere.
"""

from urllib.parse import unquote

from calve.errors import InvalidInput

LONGEST = 200
"""Bytes of a segment: file systems allow 255, and endings are put behind it."""
_ESCAPED = frozenset("/\\#?%:*")
"""Have a meaning in paths and locations, here or on other systems."""


def check_name(name: str, what: str) -> None:
    """Whether `name` can be the name of `what` ("a sink", "a table"). Raises InvalidInput."""
    if not name or name.isspace():
        raise InvalidInput(f"the name of {what} is empty")
    if not name.isprintable():
        raise InvalidInput(
            f"the name of {what} contains a character that cannot be printed",
            detail=f"Got {name[:LONGEST]!a}.",
            hint="Use letters, digits, spaces and punctuation.",
        )
    size = len(path_segment(name).encode())
    if size > LONGEST:
        raise InvalidInput(
            f"the name of {what} is too long",
            detail=f'"{name[:40]}..." takes {size} bytes as the name of a folder; the limit is {LONGEST}.',
        )


def path_segment(name: str) -> str:
    """One level of a path for a name: what paths and locations would take for something else is `%` and its bytes."""
    if name in {".", ".."}:
        return name.replace(".", "%2E")
    return "".join(c if c.isprintable() and c not in _ESCAPED else _escaped(c) for c in name)


def name_of_segment(segment: str) -> str:
    """The name that became a segment."""
    return unquote(segment)


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))
