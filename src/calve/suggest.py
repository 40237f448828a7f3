"""Did you mean ...? The one place that compares a misspelt name with the known ones."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_SIMILAR: Final = 0.6
_KEYWORD_SIMILAR: Final = 0.76
"""Keywords are short and similar: a wrong suggestion misleads more than none."""
_LONGEST_KEYWORD: Final = 40
"""The time of a comparison grows with the square of the length."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """A hint that quotes the known name closest to `name`; empty if none is close."""
    found = closest(name, known)
    return did_you_mean(f'"{found}"' if found else None)


def did_you_mean(found: str | None, otherwise: str = "") -> str:
    """The hint that names what was found, else this text."""
    return f"Did you mean {found}?" if found else otherwise


def closest(name: str, known: Iterable[str], cutoff: float = _SIMILAR) -> str | None:
    """The known name that is most similar to `name`, ignoring case."""
    folded = {other.lower(): other for other in known}
    found = get_close_matches(name.lower(), folded, n=1, cutoff=cutoff)
    return folded[found[0]] if found else None


def closest_keyword(word: str, keywords: Iterable[str]) -> str | None:
    """The keyword that a misspelt word most likely stands for; letters in the wrong order count as equal."""
    if not 1 < len(word) <= _LONGEST_KEYWORD:
        return None
    known, letters = list(keywords), sorted(word.upper())
    swapped = next((keyword for keyword in known if sorted(keyword) == letters), None)
    return swapped or closest(word, known, _KEYWORD_SIMILAR)
