"""Files with bad rows: the table has the good ones, and the dead letters say which, where and why."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, UUIDType
from pyspark.sql import SparkSession

from calve.api.verify import verify
from calve.catalog.connect import connect_embedded
from calve.errors import BadRow
from tests.support.pipelines import Pipelines
from tests.support.readers import spark_iceberg_rows

SOURCES = """
CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE SOURCE lines (id BIGINT NOT NULL, value INT, PRIMARY KEY (id) NOT ENFORCED)
  FROM FILES (PATH = '{0}/lines', FORMAT = 'json') ENVELOPE UPSERT (ORDER BY seq);
CREATE SOURCE rows (id BIGINT, value INT) FROM FILES (PATH = '{0}/rows', FORMAT = 'csv');
CREATE VIEW doubled AS SELECT id, count(*) AS n FROM rows WHERE id IS NOT NULL GROUP BY id;
"""
SINK = """CREATE SINK {0} FROM {0} TO ICEBERG CATALOG lake NAMESPACE "x" TABLE "{0}" {1}
  WITH (ON BAD ROW = 'dead letter'{2});"""


@pytest.fixture
def pipelines(tmp_path: Path, spark: SparkSession) -> Pipelines:
    (tmp_path / "lines").mkdir()
    (tmp_path / "rows").mkdir()
    return Pipelines(tmp_path / "home", spark)


def test_bad_rows_of_files_are_letters_and_the_others_arrive(pipelines: Pipelines, tmp_path: Path) -> None:
    bad = b'{"id": 2, "value": 1.5, "seq": 1}'
    lines = [
        b'{"id": 1, "value": 1, "seq": 1}',
        bad,
        bad,
        b"\xff\xfe",
        b'{"id": 1, "value": 2, "seq": 2}',
        b'{"id": 3}',
    ]
    (tmp_path / "lines" / "1.json").write_bytes(b"\n".join(lines))
    (tmp_path / "rows" / "1.csv").write_text("1,1\n2,x\n,3\n1,2,3\n")
    pipelines.apply(SOURCES.format(tmp_path))
    pipelines.apply(SINK.format("lines", "", ", COMMIT INTERVAL = '2s', CHECKPOINT INTERVAL = '1s'"))
    pipelines.apply(SINK.format("rows", "KEY (id)", ", DEAD LETTER TABLE = 'x.all'"))
    pipelines.apply(SINK.format("doubled", "KEY (id)", ", DEAD LETTER TABLE = 'x.all'"))
    assert [(r.cause, r.pending) for r in pipelines.run()] == [(None, 0)] * 3

    assert pipelines.rows("x.lines") == [(1, 2)]
    letters = pipelines.rows("x.lines_dead_letters", "value", "reason", "file")
    assert [row[0] for row in letters] == [b'{"id": 2, "value": 1.5, "seq": 1}'] * 2 + [b'{"id": 3}', b"\xff\xfe"]
    assert letters[0][1] == 'column "value" is "1.5", which is not INT'
    assert all(row[2].endswith("/lines/1.json") for row in letters)
    assert verify(pipelines.place, "lines").none

    assert pipelines.rows("x.rows") == [(1, 1)]
    found = spark_iceberg_rows(pipelines.table("x.all").metadata_location)
    of_rows = sorted((row["value"], row["reason"]) for row in found if row["sink"] == "rows")
    assert of_rows == [
        (b"1,2,3", "it has more or fewer columns than declared"),
        (b'{"id": "2", "value": "x"}', 'column "value" is "x", which is not INT'),
        (b'{"value":3}', 'column "id" is missing or null, but declared NOT NULL'),
    ]
    assert pipelines.rows("x.doubled") == [(1, 1)]
    of_view = sorted(row["value"] for row in found if row["sink"] == "doubled")
    assert of_view == [b"1,2,3", b'{"id": "2", "value": "x"}'], "without a key in the source null is a value"


def test_a_bad_row_stops_the_sink_unless_told_otherwise(pipelines: Pipelines, tmp_path: Path) -> None:
    (tmp_path / "lines" / "1.json").write_bytes(b'{"id": "x", "seq": 1}')
    pipelines.apply(SOURCES.format(tmp_path))
    pipelines.apply("""CREATE SINK s FROM lines TO ICEBERG CATALOG lake NAMESPACE "x" TABLE "t" """)
    (result,) = pipelines.run()
    assert isinstance(result.cause, BadRow)
    assert result.cause.primary == 'column "id" is "x", which is not BIGINT'
    assert "lines/1.json" in result.cause.detail


KEYED = """
CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE SOURCE lines (id BIGINT NOT NULL, ref UUID, PRIMARY KEY (id) NOT ENFORCED)
  FROM FILES (PATH = '{0}/lines', FORMAT = 'json') ENVELOPE DEBEZIUM (ORDER BY ts_ms);
CREATE SOURCE rows (id BIGINT, ref UUID) FROM FILES (PATH = '{0}/rows', FORMAT = '{1}');
CREATE VIEW by_ref AS SELECT ref, id FROM lines;
CREATE VIEW nexts AS SELECT id + 1 AS next, ref FROM rows WHERE ref IS NOT NULL;
"""
UUIDS = ("3f2504e0-4f89-11d3-9a0c-0305e82c3301", "3F2504E0-4F89-11D3-9A0C-0305E82C3302")


def change(op: str, seq: int, before: dict[str, Any] | None, after: dict[str, Any] | None) -> str:
    return json.dumps({"op": op, "ts_ms": seq, "before": before, "after": after})


def test_rows_of_a_view_without_a_key_are_letters_and_leave_nothing_behind(
    pipelines: Pipelines, tmp_path: Path
) -> None:
    first, second = ({"id": n, "ref": ref} for n, ref in enumerate(UUIDS, 1))
    without = {"id": 3, "ref": None}
    records = [
        change("c", 1, None, first),
        change("c", 2, None, second),
        change("c", 3, None, without),
        change("c", 4, None, {"id": 4, "ref": "no uuid"}),
    ]
    (tmp_path / "lines" / "1.json").write_text("\n".join(records))
    pipelines.apply(KEYED.format(tmp_path, "csv"))
    pipelines.apply(SINK.format("by_ref", "KEY (ref)", ""))
    assert [(r.cause, r.pending) for r in pipelines.run()] == [(None, 0)]
    later = [change("u", 5, without, {"id": 3, "ref": UUIDS[0]}), change("u", 6, first, {"id": 1, "ref": None})]
    (tmp_path / "lines" / "2.json").write_text("\n".join(later))
    assert [(r.cause, r.pending) for r in pipelines.run()] == [(None, 0)]

    assert pipelines.rows("x.by_ref", "id") == [(2,), (3,)]
    letters = pipelines.rows("x.by_ref_dead_letters", "value", "reason", "file")
    no_key = 'view "by_ref" has a row whose key (ref) is null'
    assert [letter[:2] for letter in letters] == [
        (b'{"id":1}', no_key),
        (b'{"id":3}', no_key),
        (records[3].encode(), 'column "ref" is "no uuid", which is not UUID'),
    ]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_texts_that_are_no_uuids_are_letters(kind: str, pipelines: Pipelines, tmp_path: Path) -> None:
    rows = {"id": [1, 2, None, 3], "ref": [UUIDS[0], UUIDS[1] + "0", UUIDS[1], None]}
    table = pa.table(rows, schema=pa.schema([("id", pa.int64()), ("ref", pa.string())]))
    write = {
        "csv": partial(csv.write_csv, write_options=csv.WriteOptions(include_header=False)),
        "parquet": pq.write_table,
    }
    write[kind](table, tmp_path / "rows" / f"1.{kind}")
    pipelines.apply(KEYED.format(tmp_path, kind))
    pipelines.apply(SINK.format("rows", "KEY (id)", "") + SINK.format("nexts", "KEY (next)", ""))
    assert [(r.cause, r.pending) for r in pipelines.run()] == [(None, 0)] * 2
    assert [(n, str(ref) if ref else None) for n, ref in pipelines.rows("x.rows")] == [(1, UUIDS[0]), (3, None)]
    assert [key for key, _ in pipelines.rows("x.nexts")] == [2]
    reasons = [
        'column "id" is missing or null, but declared NOT NULL',
        f'column "ref" is "{UUIDS[1]}0", which is not UUID',
    ]
    assert sorted(reason for (reason,) in pipelines.rows("x.rows_dead_letters", "reason")) == reasons
    no_key = 'view "nexts" has a row whose key (next) is null'
    assert pipelines.rows("x.nexts_dead_letters", "reason") == [(reasons[1],), (no_key,)]
    assert verify(pipelines.place, "nexts").none


STRICT = """
CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE SOURCE lines (id BIGINT NOT NULL, ref STRING, v INT, PRIMARY KEY (id) NOT ENFORCED)
  FROM FILES (PATH = '{0}/lines', FORMAT = 'json') ENVELOPE DEBEZIUM (ORDER BY ts_ms);
CREATE SOURCE rows (id BIGINT NOT NULL, ref STRING, v INT, PRIMARY KEY (id) NOT ENFORCED)
  FROM FILES (PATH = '{0}/rows', FORMAT = 'parquet');
"""


def test_what_only_the_table_asks_for_makes_letters_too(pipelines: Pipelines, tmp_path: Path) -> None:
    """The table has a uuid where the source has a text, and needs a value where the source may have none."""
    rows = [(1, UUIDS[0], 1), (2, "no uuid", 1), (3, UUIDS[1], None), (4, None, 4)]
    named = [dict(zip(("id", "ref", "v"), row, strict=True)) for row in rows]
    (tmp_path / "lines" / "1.json").write_text("\n".join(change("c", n, None, row) for n, row in enumerate(named)))
    kinds = pa.schema({"id": pa.int64(), "ref": pa.string(), "v": pa.int32()})
    pq.write_table(pa.Table.from_pylist(named, kinds), tmp_path / "rows" / "1.parquet")
    catalog = connect_embedded(pipelines.home)
    catalog.create_namespace("x")
    columns = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "Ref", UUIDType(), required=False),
        NestedField(3, "v", IntegerType(), required=True),
        identifier_field_ids=[1],
    )
    for name in ("lines", "rows"):
        catalog.create_table(f"x.{name}", columns, properties={"format-version": "2"})
    pipelines.apply(STRICT.format(tmp_path))
    pipelines.apply(SINK.format("lines", "", ", COMMIT INTERVAL = '1s'") + SINK.format("rows", "", ""))
    for _ in range(2):
        assert [(r.cause, r.pending) for r in pipelines.run()] == [(None, 0)] * 2
    for name in ("lines", "rows"):
        assert pipelines.rows(f"x.{name}", "id", "v") == [(1, 1), (4, 4)]
        assert sorted(reason for (reason,) in pipelines.rows(f"x.{name}_dead_letters", "reason")) == [
            'column "ref" is "no uuid", which is not UUID',
            'column "v" is missing or null, but declared NOT NULL',
        ]
        assert verify(pipelines.place, name).none
