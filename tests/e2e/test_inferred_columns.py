"""`calve init` writes a pipeline that runs as it is; the rows are read back by DuckDB."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from calve.api.init import NAMESPACE, propose_for_folder
from tests.support.pipelines import Pipelines

pytestmark = pytest.mark.embedded


def test_proposed_pipelines_over_every_format_of_files_run_as_they_are(tmp_path: Path, spark: SparkSession) -> None:
    folders = {form: tmp_path / form for form in ("upserts", "changes", "lines", "typed")}
    for folder in folders.values():
        folder.mkdir()
    upserts: list[dict[str, Any]] = [
        {"id": 1, "amount": "1.50", "tags": ["a"], "at": "2026-01-01T00:00:00Z", "seq": 1, "op": "i"},
        {"id": 2, "amount": "2.00", "tags": [], "at": "2026-01-02T00:00:00Z", "seq": 2, "op": "i"},
        {"id": 1, "seq": 3, "op": "d"},
    ]
    changes: list[dict[str, Any]] = [
        {"before": None, "after": {"id": 1, "who": {"name": "x"}}, "op": "c", "ts_ms": 1},
        {"before": {"id": 1, "who": {"name": "x"}}, "after": {"id": 1, "who": {"name": "y"}}, "op": "u", "ts_ms": 2},
    ]
    for name, records in (("upserts", upserts), ("changes", changes)):
        (folders[name] / "1.json").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    (folders["lines"] / "1.csv").write_text("id;day;zip;updated_at\n1;2026-01-31;01234;1\n1;2026-02-01;;2\n2;;5;3\n")
    stamps = pa.array([datetime(2026, 1, 31, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"id": pa.array([1], pa.int32()), "at": stamps}), folders["typed"] / "1.parquet")
    pq.write_table(pa.table({"id": pa.array([2], pa.int64()), "v": [1.5]}), folders["typed"] / "2.parquet")

    pipelines = Pipelines(tmp_path / "home", spark)
    texts = [propose_for_folder(str(folder)).text for folder in folders.values()]
    results = pipelines.run("\n".join(texts))
    assert [result.cause for result in results if result.exit_code] == []

    rows = {name: pipelines.rows(f"{NAMESPACE}.{name}") for name in folders}
    assert rows["upserts"] == [(2, Decimal("2.00"), [], datetime(2026, 1, 2, tzinfo=UTC), 2)]
    assert rows["changes"] == [(1, {"name": "y"})]
    assert rows["lines"] == [(1, date(2026, 2, 1), None, 2), (2, None, "5", 3)]
    assert rows["typed"] == [(1, datetime(2026, 1, 31, tzinfo=UTC), None), (2, None, 1.5)]

    (folders["upserts"] / "2.json").write_text('{"id": 3, "amount": "3.25", "new": true, "seq": 4, "op": "i"}\n')
    results = pipelines.run("\n".join(texts))
    assert [result.cause for result in results if result.exit_code] == []
    assert [row[0] for row in pipelines.rows(f"{NAMESPACE}.upserts")] == [2, 3]
