"""Checks a frame of changes and casts it to the table's types, inside Spark and in the same pass as everything else.

Changes that were computed in memory (`ArrowChanges`) need neither, or are not used.

A row that must not be written raises its error as text (`errors.encode`) in its task; `spark/failures.py` turns the
failed job back into that error. Everything is SQL text: calls on `Column` would be hundreds of round trips to the JVM
for every batch.
"""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812 - PySpark's own convention

from calve.errors import BadRow, InvalidInput
from calve.model.change import BAD, DELETE, DIFF, MAY_BE_LETTER, OP, ORIGIN_OPEN, PROGRESS, TIME, UPSERT
from calve.model.files import WriteTarget
from calve.model.types import UUID_PATTERN
from calve.spark.sqltext import ident, literal, not_utf8
from calve.spark.version import is_interval, is_variant
from calve.write.job import ChangeColumns, WriteColumn, layout_of


@dataclass(frozen=True)
class ArrowChanges:
    """Changes in memory, without any bad record among them."""

    rows: pa.Table
    """The table's columns, the operation and the order columns."""
    table: T.StructType
    """The table's columns in Spark's types."""
    beside: T.StructType
    """The other columns in Spark's types."""

    @property
    def columns(self) -> list[str]:
        """The names of all columns."""
        return list(self.rows.column_names)

    def fits(self, target: WriteTarget) -> bool:
        """Whether the table takes all of them without a cast, and none of them violates its constraints."""
        layout = layout_of(self.columns, target)
        deletes = pc.sum(pc.equal(self.rows[OP], DELETE), min_count=0).as_py() if OP in self.columns else 0
        return all(
            _stored(column, "value", self.table[column.given].dataType) == "value"
            and (not column.required or self.rows[column.given].null_count <= (0 if column in layout.key else deletes))
            for column in layout.columns
        )

    def checked(self, layout: ChangeColumns) -> pa.Table:
        """The rows as `check_changes` would deliver them, for a table that they fit."""
        names = {column.given: column.name for column in layout.columns}
        return self.rows.rename_columns([names.get(name, name) for name in self.columns])


def check_changes(frame: DataFrame, layout: ChangeColumns) -> DataFrame:
    """Select the table's columns in the table's types, the operation and the order columns, and check every row.

    Frames with DIFF keep that column, the time and the progress flag instead of the operation.
    """
    kept = [c.given for c in layout.columns]
    beside = [name for name in (OP, *layout.order, DIFF, TIME, PROGRESS) if name in frame.columns and name not in kept]
    columns = [f"{_checked_column(c, layout, frame)} as {ident(c.name)}" for c in layout.columns]
    try:
        return frame.selectExpr(*columns, *map(ident, beside))
    except AnalysisException as error:
        raise InvalidInput(
            "the changes do not have the table's types", detail=str(error).strip().splitlines()[0]
        ) from error


def _checked_column(column: WriteColumn, layout: ChangeColumns, frame: DataFrame) -> str:
    """SQL of a column: its value, or an error."""
    found = frame.schema[column.given]
    value = _stored(column, ident(column.given), found.dataType)
    if column in layout.key:
        value = _unless(f"{value} is null and {_is_change(frame)}", _raised(_null_key(column)), value)
    elif column.required and found.nullable:
        written = f"{OP} = {UPSERT}" if OP in frame.columns else _is_change(frame)
        value = _unless(f"{value} is null and {written}", _raised(_null_value(column)), value)
    if garbled := not_utf8(ident(column.given), found.dataType):
        value = _unless(garbled, _raised(_invalid_utf8(column)), value)
    if column == (layout.key or layout.columns)[0]:  # before the null check, since a bad record has no key
        error = f"substring_index({BAD}, {literal(ORIGIN_OPEN)}, 1)"  # without the record itself
        letter = f"if(contains({BAD}, {literal(ORIGIN_OPEN)}), {literal(MAY_BE_LETTER)}, '')"
        value = _unless(f"{BAD} is not null", f"raise_error(concat({error}, {letter}))", value)
    return value


def _unless(wrong: str, error: str, value: str) -> str:
    return f"case when {wrong} then {error} else {value} end"


def _stored(column: WriteColumn, value: str, found: T.DataType) -> str:
    """SQL of a value in the type that is written."""
    if column.spark_type is None:
        storable = _storable(found)
        return value if storable == found else f"cast({value} as {_text_of(storable)})"
    if is_variant(found):
        return f"to_json({value})"
    if column.kind == "uuid" and isinstance(found, T.StringType):
        bytes_of = f"unhex(regexp_replace({value}, '-', ''))"
        wrong = f"when {value} is not null then {_raised(_invalid_uuid(column))}"
        return f"case when {value} rlike {literal(UUID_PATTERN)} then {bytes_of} {wrong} end"
    if column.kind.startswith("fixed"):
        size = int(column.kind[len("fixed[") : -1])
        return _unless(f"octet_length({value}) != {size}", _raised(_wrong_length(column, size)), value)
    return value if found.simpleString() == column.spark_type else f"cast({value} as {column.spark_type})"


def _text_of(kind: T.DataType) -> str:
    """A type as SQL text; Spark's own does not quote the names of fields."""
    match kind:
        case T.ArrayType():
            return f"array<{_text_of(kind.elementType)}>"
        case T.MapType():
            return f"map<{_text_of(kind.keyType)}, {_text_of(kind.valueType)}>"
        case T.StructType():
            return f"struct<{', '.join(f'{ident(f.name)}: {_text_of(f.dataType)}' for f in kind.fields)}>"
    return str(kind.simpleString())


def _storable(kind: T.DataType) -> T.DataType:
    """The type that is stored: intervals nested in other types become strings."""
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


def _is_change(frame: DataFrame) -> str:
    return f"not {PROGRESS}" if PROGRESS in frame.columns else "true"


def _raised(error: BadRow) -> str:
    return f"raise_error({literal(error.encode())})"


def _null_key(column: WriteColumn) -> BadRow:
    return BadRow(
        f'key column "{column.name}" is null',
        detail="A change without a key cannot be applied to the table.",
        hint="Correct or filter out the record at the source.",
    )


def _null_value(column: WriteColumn) -> BadRow:
    return BadRow(
        f'column "{column.name}" is null',
        detail="The table declares it as required.",
        hint="Correct the record at the source, or make the column optional.",
    )


def _invalid_utf8(column: WriteColumn) -> BadRow:
    return BadRow(
        f'column "{column.name}" contains invalid UTF-8',
        detail="Other engines could not read a table with such a string.",
        hint="Correct the record at the source, or keep the column as BINARY.",
    )


def _invalid_uuid(column: WriteColumn) -> BadRow:
    return BadRow(
        f'column "{column.name}" contains an invalid UUID',
        detail="A UUID is 32 hexadecimal digits in groups of 8, 4, 4, 4 and 12.",
        hint="Correct the record at the source, or declare the column as STRING.",
    )


def _wrong_length(column: WriteColumn, size: int) -> BadRow:
    return BadRow(
        f'column "{column.name}" contains a value of the wrong length',
        detail=f"The table declares it with {size} bytes.",
        hint="Correct the record at the source.",
    )
