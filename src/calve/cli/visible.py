"""Texts of users, data and errors as a terminal may show them. Imported for `calve --help`: nothing here is slow."""

from unicodedata import category

_CONTROL = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Categories of characters that are not text: control characters, surrogates, line and paragraph separators."""
_TURNING = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Reverse the direction of text, which can make it read as something else."""


def visible(text: str) -> str:
    """Escape characters that control a terminal or cannot be encoded."""
    if text.isprintable() and _TURNING.isdisjoint(text):
        return text
    hidden = (c not in "\n\t" and (category(c) in _CONTROL or c in _TURNING) for c in text)
    return "".join(ascii(c)[1:-1] if hide else c for c, hide in zip(text, hidden, strict=True))
