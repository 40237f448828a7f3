"""An order that holds across checkpoints: what orders a change is kept in the table, as a column of the row.

One typed field is kept as it is. Several fields, or a field of JSON that is not declared, which is a number and a text,
are kept as a struct whose fields compare one after the other. The order of arrival is not kept: of changes that are
equal in the envelope's own order, the one that comes later wins.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql import types as T  # noqa: N812 - as above

from calve.model.change import ORDER, order_columns
from calve.source import frames


def own_order(changes: DataFrame, schema: T.StructType) -> list[str]:
    """The order columns of the envelope itself, without those of arrival; `schema` is that of the records."""
    return order_columns(changes.columns)[: -len(frames.arrival_types(schema))]


def with_order(changes: DataFrame, schema: T.StructType) -> DataFrame:
    """Changes with the column that is kept in the table."""
    own = own_order(changes, schema)
    kept = F.col(own[0]) if len(own) == 1 else F.struct(*(F.col(name).alias(f"_{i}") for i, name in enumerate(own)))
    return changes.withColumn(ORDER, kept)
