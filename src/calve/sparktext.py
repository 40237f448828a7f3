"""Pieces of Spark SQL as text.

Envelopes are written as SQL text and not as calls on `Column`: a record with a hundred columns is some thousand
calls, each a round trip to the JVM, for every micro-batch. No literal here contains a backslash, since a session
setting (`spark.sql.parser.escapedStringLiterals`) changes what it means.
"""

from collections.abc import Iterable


def ident(*parts: str) -> str:
    """A column or a field of one, quoted."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def literal(text: str) -> str:
    """A string literal of any text."""
    if "'" in text or "\\" in text:
        return f"cast(X'{text.encode().hex()}' as string)"
    return f"'{text}'"


def literals(texts: Iterable[str]) -> str:
    """A list of string literals for IN."""
    return "(" + ", ".join(literal(text) for text in texts) + ")"


def coalesce(choices: list[str], null_type: str) -> str:
    """The first that is not null."""
    return f"coalesce({', '.join([*choices, f'cast(null as {null_type})'])})"
