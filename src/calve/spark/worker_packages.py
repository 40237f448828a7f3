"""The packages that executors need: a part of those that the driver has, since they neither plan nor commit.

`calve` cannot be installed with less than its dependencies, so workers get it with `pip install --no-deps`, and these
packages by name. Spark's own (PySpark, py4j) come with the cluster. A test runs tasks in an environment with nothing
else.
"""

import re
from collections.abc import Callable, Iterable
from enum import StrEnum

from calve.errors import InvalidInput

_ALWAYS = ("cachetools", "numpy", "pyarrow", "pyiceberg", "pyroaring", "requests", "sqlalchemy")
"""Imported by modules that tasks use; catalogs are SQLAlchemy's only on the driver, but its errors are told apart."""
_NAME = re.compile(r"[A-Za-z0-9._-]+")


class WorkerExtra(StrEnum):
    """Extras of calve that concern executors."""

    AWS = "aws"
    KAFKA = "kafka"


_EXTRAS = {WorkerExtra.AWS: ("boto3",), WorkerExtra.KAFKA: ("confluent-kafka", "fastavro", "protobuf")}


def worker_requirements(
    extras: Iterable[WorkerExtra], requirements: Callable[[str], list[str] | None] | None = None
) -> tuple[str, ...]:
    """`name==version` of every package, as installed here, with all that they need. Raises InvalidInput."""
    from importlib.metadata import requires  # noqa: PLC0415 - takes 15 ms, and `calve --help` imports this module

    requirements = requirements or requires
    roots = [*_ALWAYS, *(name for extra in extras for name in _EXTRAS[extra])]
    for extra in extras:
        for name in _EXTRAS[extra]:
            if _installed(name) is None:
                raise InvalidInput(
                    f"{name} is not installed here",
                    detail="Executors get the versions of this environment.",
                    hint=f'pip install "calve[{extra}]"',
                )
    found: dict[str, str] = {}
    while roots:
        name = re.sub(r"[-_.]+", "-", roots.pop()).lower()
        number = _installed(name)
        if name in found or number is None:  # not installed: its marker does not hold here
            continue
        found[name] = number
        roots += [match[0] for text in requirements(name) or () if (match := _needed(text))]
    return tuple(f"{name}=={number}" for name, number in sorted(found.items()))


def _needed(requirement: str) -> re.Match[str] | None:
    """The name of a requirement that is not part of an extra."""
    return None if re.search(r"\bextra\s*==", requirement) else _NAME.match(requirement)


def _installed(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - as above

    try:
        return version(name)
    except PackageNotFoundError:
        return None
