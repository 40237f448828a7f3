"""Debezium change records: to be read here."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from calve.errors import InvalidInput
from calve.model.spec import Debezium
from calve.source.upsert import UpsertPlan


def plan(schema: StructType, envelope: Debezium, key: Sequence[str]) -> UpsertPlan:
    """Check the envelope against the frame's schema."""
    raise InvalidInput("Debezium records cannot be read yet")


def changes_of_records(frame: DataFrame, checked: UpsertPlan) -> DataFrame:
    """The changes in a frame of change records."""
    raise InvalidInput("Debezium records cannot be read yet")
