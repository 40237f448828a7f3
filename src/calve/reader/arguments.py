"""Checks what callers of `calve.read`, `calve.changes` and their kin pass, with errors that show the right call."""

from collections.abc import Sequence

from pyspark.sql import SparkSession

from calve.errors import InvalidInput
from calve.lake import TableRef
from calve.spark.executors import check_executors, refuse_connect


def check_session_and_table(function: str, spark: SparkSession, table: TableRef, more: str = "") -> None:
    """Refuse anything else, and executors that cannot run it. `more` are further arguments in the example."""
    refuse_connect(spark)
    given: tuple[object, object] = (spark, table)
    if not (isinstance(given[0], SparkSession) and isinstance(given[1], TableRef)):
        raise InvalidInput(
            f"{function} takes a Spark session and a table of a lake",
            detail=f"Got {spark!r} and {table!r}.",
            hint=f'Write {function}(spark, calve.connect().table("namespace.table"){more}).',
        )
    check_executors(spark)


def check_list(name: str, given: object) -> None:
    """Refuse a text where names are listed: it is a list of its characters for Python."""
    if isinstance(given, str):
        raise InvalidInput(f"{name} is a list", detail=f'Got "{given}".', hint=f'Write {name}=["{given}"].')
    if given is not None and not isinstance(given, Sequence):
        raise InvalidInput(f"{name} is a list", detail=f"Got {given!r}.", hint=f'Write {name}=["id"].')
