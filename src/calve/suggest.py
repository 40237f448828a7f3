"""Names that were meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def suggestion(name: str, known: Iterable[str]) -> str:
    """A hint with the known name that is nearest to `name`; empty when none is near."""
    folded = {other.lower(): other for other in known}
    near = get_close_matches(name.lower(), folded, n=1)
    return f'Did you mean "{folded[near[0]]}"?' if near else ""
