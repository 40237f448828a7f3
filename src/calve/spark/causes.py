"""The causes of a failure, from the exception that was raised to the innermost one.

An exception of the JVM arrives as a `Py4JJavaError` or as one of PySpark's own, with the Java object behind it: its
causes are asked one after the other (`getCause`), with Spark's condition, SQL state and message parameters where it has
them. A failed Python task arrives as the text of its traceback, and a task of another machine whose exception cannot be
deserialized as a text with `Caused by:` lines; only these two are read as text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from traceback import walk_tb
from typing import Any
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from calve.sparkversion import SparkFacts, facts_of_throwable

_MOST = 20
"""Causes that are looked at: chains may be circles."""
_MOST_LETTERS = 400
_PYTHON_FAILED = "org.apache.spark.api.python.PythonException"
_CAUSED_BY = re.compile(r"^\s*(?:Caused by: |: )(?P<name>[\w.$]+)(?:: (?P<message>.*))?$", re.MULTILINE)
_RAISED = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")
_SIGNED = re.compile(r"(?i)([?&;](?:[\w-]*(?:signature|token|credential|password|secret|key)[\w-]*)=)[^&\s;\"']+")


@dataclass(frozen=True)
class Cause:
    """One exception of a chain."""

    name: str
    """Its class; of Java's with the package."""
    message: str
    condition: str = ""
    """What Spark calls this kind of error: FAILED_READ_FILE.NO_HINT, say."""
    state: str = ""
    """The SQL state."""
    file: str = ""
    """The file that Spark was reading."""
    number: int | None = None
    """`errno`, where Python knows it."""
    kinds: tuple[str, ...] = ()
    """The class and those above it, of an exception of this process."""

    def __str__(self) -> str:
        said = _without_secrets(" ".join(self.message.split()))
        short = self.name.rpartition(".")[2]
        return (said if said.startswith(short) else f"{short}: {said}" if said else short)[:_MOST_LETTERS]


def causes_of(error: BaseException) -> tuple[Cause, ...]:
    """All causes, the outermost first."""
    return tuple(_walk(error))[:_MOST] or (_of_python(error),)


def text_of(error: BaseException) -> str:
    """All that an exception says. Py4J asks the JVM for the text, which may be gone."""
    try:
        return str(error)
    except (Py4JError, OSError):
        return type(error).__name__


def plain_path(path: str) -> str:
    """A file as a person names it: Spark has URIs of local files, with escapes."""
    parts = urlsplit(path)
    return unquote(parts.path) if parts.scheme == "file" else _without_secrets(path)


def _without_secrets(text: str) -> str:
    return _SIGNED.sub(r"\1***", _LOGIN.sub("***@", text))


def _walk(error: BaseException) -> Iterator[Cause]:
    java = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    if java is not None:
        try:
            yield from _of_java(java)
        except (Py4JError, OSError) as lost:  # the JVM is gone
            yield _of_python(lost)
        return
    if not isinstance(error, PySparkException):
        yield _of_python(error)
    yield from _of_text(text_of(error))


def _of_java(java: Any) -> Iterator[Cause]:
    for _ in range(_MOST):
        name, message = str(java.getClass().getName()), str(java.getMessage() or "")
        facts = facts_of_throwable(java)
        if name == _PYTHON_FAILED:
            yield from _of_text(message)
        else:
            yield _with_facts(name, message, facts)
        following = java.getCause()
        if following is None:
            yield from _of_text(message)  # of a task whose exception did not come along
            return
        java = following


def _with_facts(name: str, message: str, facts: SparkFacts) -> Cause:
    return Cause(name, message, facts.condition, facts.state, facts.parameters.get("path", ""))


def _of_python(error: BaseException) -> Cause:
    if isinstance(error, ConnectionError) and _raised_by_py4j(error):  # nothing listens where the JVM was
        return Cause(Py4JNetworkError.__name__, text_of(error))
    number = error.errno if isinstance(error, OSError) else None
    kinds = tuple(kind.__name__ for kind in type(error).__mro__)
    return Cause(type(error).__name__, text_of(error), number=number, kinds=kinds)


def _raised_by_py4j(error: BaseException) -> bool:
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return bool(frames) and str(frames[-1].f_globals.get("__name__", "")).startswith("py4j.")


def _of_text(text: str) -> list[Cause]:
    """Causes that a text names: `Caused by:` of Java; in a traceback of Python the first one is the innermost."""
    java = [Cause(found["name"], found["message"] or "") for found in _CAUSED_BY.finditer(text)]
    lines = text.splitlines()
    raised = [
        Cause(found["name"].rpartition(".")[2], found["message"] or "")
        for before, line in pairwise(lines)
        if before.startswith("  ") and (found := _RAISED.match(line))
    ]
    return [*java, *reversed(raised)] if "Traceback (most recent call last)" in text else java
