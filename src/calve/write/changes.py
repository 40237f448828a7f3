"""A frame of changes -> a frame that can be written. Checks run inside Spark, in the same pass as everything else.

A row that must not be written raises its error in the task that meets it, as text (`errors.encode`); `failures.py`
turns the failed job back into that error.
"""

from pyspark.errors import AnalysisException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from calve.errors import BadRow, InvalidInput
from calve.model.change import BAD, OP, UPSERT
from calve.write.columns import Column, Layout


def quoted(name: str) -> SparkColumn:
    """A column by its exact name, dots and all."""
    return F.col(f"`{name.replace('`', '``')}`")


def checked(frame: DataFrame, layout: Layout) -> DataFrame:
    """The table's columns in the table's types, the operation and the order columns; every row fit to be written."""
    try:
        return frame.select(
            *[_checked(column, layout, frame).alias(column.name) for column in layout.columns],
            OP,
            *layout.order,
        )
    except AnalysisException as error:
        raise InvalidInput(
            "the changes do not have the table's types", detail=str(error).strip().splitlines()[0]
        ) from error


def _checked(column: Column, layout: Layout, frame: DataFrame) -> SparkColumn:
    value = quoted(column.given)
    found = frame.schema[column.given]
    if column.spark_type and found.dataType.simpleString() != column.spark_type:
        value = value.cast(column.spark_type)
    if column in layout.key:
        value = F.when(value.isNull(), _raised(_null_key(column))).otherwise(value)
    elif column.required and found.nullable:
        missing = value.isNull() & (F.col(OP) == UPSERT)
        value = F.when(missing, _raised(_null_value(column))).otherwise(value)
    if column == layout.key[0]:  # before the null check: a record that is no change has no key either
        value = F.when(F.col(BAD).isNotNull(), F.raise_error(F.col(BAD))).otherwise(value)
    return value


def _raised(error: BadRow) -> SparkColumn:
    return F.raise_error(F.lit(error.encode()))


def _null_key(column: Column) -> BadRow:
    return BadRow(
        f'key column "{column.name}" is null',
        detail="A change without a key cannot be applied to the table.",
        hint="Correct or filter out the record at the source.",
    )


def _null_value(column: Column) -> BadRow:
    return BadRow(
        f'column "{column.name}" is null',
        detail="The table declares it as required.",
        hint="Correct the record at the source, or make the column optional.",
    )
