"""Conditions that users write in SQL over the fields of a record."""

import re
from collections.abc import Sequence

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812

from calve.errors import InvalidInput
from calve.sparkversion import condition_of, quiet_analysis

Path = tuple[str, ...]

_PART = re.compile(r"`((?:[^`]|``)*)`")
_MOST_FIELDS = 100


def check_condition(condition: str, schema: T.StructType) -> None:
    """Refuse a condition that Spark cannot evaluate on a record of this schema."""
    error = _error(condition, schema)
    if error is not None:
        raise _invalid(condition, error) from error


def undeclared_fields(condition: str, declared: Sequence[T.StructField]) -> list[Path]:
    """Fields that a condition names and the declared columns do not have: the texts to be taken from the JSON."""
    paths: list[Path] = []
    for _ in range(_MOST_FIELDS):
        error = _error(condition, T.StructType([*declared, *text_fields(paths)]))
        if error is None:
            return paths
        path = _unresolved(error)
        if path is None or path in paths:
            raise _invalid(condition, error) from error
        paths.append(path)
    raise InvalidInput("delete_when names too many fields", detail=f"{condition}: more than {_MOST_FIELDS}.")


def text_fields(paths: Sequence[Path]) -> list[T.StructField]:
    """The texts at these paths as columns, structs where a path has several parts."""
    tops = dict.fromkeys(path[0] for path in paths)
    return [T.StructField(top, _text_type([p[1:] for p in paths if p[0] == top])) for top in tops]


def _text_type(rests: list[Path]) -> T.DataType:
    deeper = [rest for rest in rests if rest]
    return T.StructType(text_fields(deeper)) if deeper else T.StringType()


def _error(condition: str, schema: T.StructType) -> AnalysisException | ParseException | None:
    try:
        with quiet_analysis():
            _ = SparkSession.active().createDataFrame([], schema).where(condition).schema
    except (AnalysisException, ParseException) as error:
        return error
    return None


def _unresolved(error: AnalysisException | ParseException) -> Path | None:
    if not condition_of(error).startswith("UNRESOLVED_COLUMN"):
        return None
    name = (error.getMessageParameters() or {}).get("objectName", "")
    return tuple(part.replace("``", "`") for part in _PART.findall(name)) or None


def _invalid(condition: str, error: AnalysisException | ParseException) -> InvalidInput:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return InvalidInput(
        "the condition of delete_when is not understood",
        detail=f"{condition}: {lines[0] if lines else type(error).__name__}",
        hint="Write a Spark SQL condition over fields of the record, such as op = 'd'.",
    )
