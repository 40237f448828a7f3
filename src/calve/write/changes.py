"""A frame of changes -> a frame that can be written. Checks run inside Spark, in the same pass as everything else.

A row that must not be written raises its error in the task that meets it, as text (`errors.encode`); `failures.py`
turns the failed job back into that error.
"""

from pyspark.errors import AnalysisException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql import types as T  # noqa: N812 - as above

from calve.errors import BadRow, InvalidInput
from calve.model.change import BAD, DIFF, OP, PROGRESS, TIME, UPSERT
from calve.model.letter import ORIGIN_OPEN
from calve.sparkversion import is_interval, is_variant
from calve.write.columns import Column, Layout

_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"


def quoted(name: str) -> SparkColumn:
    """A column by its exact name, dots and all."""
    return F.col(f"`{name.replace('`', '``')}`")


def checked(frame: DataFrame, layout: Layout) -> DataFrame:
    """The table's columns in the table's types, the operation and the order columns; every row fit to be written.

    Rows of DIFF keep that column, their time and whether they are progress, instead of the operation.
    """
    kept = [c.given for c in layout.columns]
    beside = [name for name in (OP, *layout.order, DIFF, TIME, PROGRESS) if name in frame.columns and name not in kept]
    try:
        return frame.select(*[_checked(c, layout, frame).alias(c.name) for c in layout.columns], *beside)
    except AnalysisException as error:
        raise InvalidInput(
            "the changes do not have the table's types", detail=str(error).strip().splitlines()[0]
        ) from error


def _checked(column: Column, layout: Layout, frame: DataFrame) -> SparkColumn:
    found = frame.schema[column.given]
    value = _stored(column, quoted(column.given), found.dataType)
    if column in layout.key:
        value = F.when(value.isNull() & _is_change(frame), _raised(_null_key(column))).otherwise(value)
    elif column.required and found.nullable:
        written = F.col(OP) == UPSERT if OP in frame.columns else _is_change(frame)
        value = F.when(value.isNull() & written, _raised(_null_value(column))).otherwise(value)
    if column == (layout.key or layout.columns)[0]:  # before the null check: a record that is no change has no key
        error = F.substring_index(F.col(BAD), ORIGIN_OPEN, 1)  # without the record itself
        value = F.when(F.col(BAD).isNotNull(), F.raise_error(error)).otherwise(value)
    return value


def _stored(column: Column, value: SparkColumn, found: T.DataType) -> SparkColumn:
    """The value in the type that is written."""
    if column.spark_type is None:
        storable = _storable(found)
        return value if storable == found else value.cast(storable)
    if is_variant(found):
        return F.to_json(value)
    if column.kind == "uuid" and isinstance(found, T.StringType):
        bytes_of = F.unhex(F.regexp_replace(value, "-", ""))
        return F.when(value.rlike(_UUID), bytes_of).when(value.isNotNull(), _raised(_no_uuid(column)))
    if column.kind.startswith("fixed"):
        size = int(column.kind[len("fixed[") : -1])
        return F.when(F.octet_length(value) != size, _raised(_other_length(column, size))).otherwise(value)
    return value if found.simpleString() == column.spark_type else value.cast(column.spark_type)


def _storable(kind: T.DataType) -> T.DataType:
    """Intervals inside of other types are texts."""
    if is_interval(kind):
        return T.StringType()
    match kind:
        case T.ArrayType():
            return T.ArrayType(_storable(kind.elementType), kind.containsNull)
        case T.MapType():
            return T.MapType(_storable(kind.keyType), _storable(kind.valueType), kind.valueContainsNull)
        case T.StructType():
            return T.StructType([T.StructField(f.name, _storable(f.dataType), f.nullable) for f in kind.fields])
    return kind


def _is_change(frame: DataFrame) -> SparkColumn:
    return ~F.col(PROGRESS) if PROGRESS in frame.columns else F.lit(True)  # noqa: FBT003 - a literal


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


def _no_uuid(column: Column) -> BadRow:
    return BadRow(
        f'column "{column.name}" has a text that is no uuid',
        detail="A uuid is 32 hexadecimal digits in groups of 8, 4, 4, 4 and 12.",
        hint="Correct the record at the source, or declare the column as STRING.",
    )


def _other_length(column: Column, size: int) -> BadRow:
    return BadRow(
        f'column "{column.name}" has a value of another length',
        detail=f"The table declares it with {size} bytes.",
        hint="Correct the record at the source.",
    )
