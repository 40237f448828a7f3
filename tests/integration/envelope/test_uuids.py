"""Texts that must be uuids, whatever envelope they come in, in frames that have their types already."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from calve.envelope.envelopes import changes_of
from calve.errors import decode
from calve.model.change import BAD
from calve.model.spec import Debezium, Diff, Envelope, Upsert
from calve.model.types import UUID_MARK

COLUMNS = f"id INT NOT NULL, ref STRING COMMENT '{UUID_MARK}'"
IMAGE = "STRUCT<id: INT, ref: STRING>"
RIGHT, WRONG = "3f2504e0-4f89-11d3-9a0c-0305E82C3301", "3f2504e0-4f89-11d3-9a0c-0305e82c330"
REFS = [RIGHT, WRONG, None]


@pytest.mark.parametrize(
    ("envelope", "ddl", "rows"),
    [
        (Upsert(("at",), columns=COLUMNS), "id INT, ref STRING, at INT", [(n, ref, 1) for n, ref in enumerate(REFS)]),
        (
            Debezium(("ts_ms",), columns=COLUMNS),
            f"op STRING, ts_ms BIGINT, before {IMAGE}, after {IMAGE}",
            [("c", 1, None, (n, ref)) for n, ref in enumerate(REFS)],
        ),
        (
            Diff("at", "diff", None, COLUMNS),
            "id INT, ref STRING, at BIGINT, diff INT",
            [(n, ref, 1, 1) for n, ref in enumerate(REFS)],
        ),
    ],
    ids=["upsert", "debezium", "diff"],
)
def test_a_text_that_is_no_uuid_is_a_bad_row_in(
    envelope: Envelope, ddl: str, rows: list[tuple[Any, ...]], spark: SparkSession
) -> None:
    changes = changes_of(spark.createDataFrame(rows, ddl), envelope, ["id"]).collect()
    assert sorted((row["id"], row["ref"]) for row in changes if row[BAD] is None) == [(0, RIGHT), (2, None)]
    (bad,) = (decode(row[BAD]) for row in changes if row[BAD] is not None)
    assert bad is not None
    assert bad.primary == f'column "ref" is "{WRONG}", which is not UUID'
