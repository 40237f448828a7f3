"""Pieces of Spark SQL as text.

Envelopes are written as SQL text and not as calls on `Column`: a record with a hundred columns is some thousand calls, each a
round trip to the JVM, for every micro-batch. No literal here contains a backslash, since a session setting
(`spark.sql.parser.escapedStringLiterals`) changes what it means.
"""

from collections.abc import Iterable

from calve.errors import InvalidInput


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


def let(variable: str, value: str, body: str) -> str:
    """`body` of a value that is computed once: without it, a value used twice is written and computed twice."""
    return f"get(transform(array({value}), {variable} -> {body}), 0)"


def coalesce(choices: list[str], null_type: str) -> str:
    """The first that is not null."""
    return f"coalesce({', '.join([*choices, f'cast(null as {null_type})'])})"


def path_of(*names: str, start: str = "$") -> str:
    """A string literal of the JSON path of a field; its names may hold anything but both kinds of quotes."""
    steps = []
    for name in names:
        if '"' in name and "'" in name:
            raise InvalidInput(f"the field {name} has both kinds of quotes in its name")
        quote = "'" if '"' in name else '"'
        steps.append(f"[{quote}{name}{quote}]")
    return literal(start + "".join(steps))
