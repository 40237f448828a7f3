"""Files with bad rows: the table has the others, and the letters say which, where and why."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from calve.errors import BadRow
from calve.runtime.verifying import verify
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
        (b'{"value":3}', 'column "id" is missing or null, and is NOT NULL'),
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
