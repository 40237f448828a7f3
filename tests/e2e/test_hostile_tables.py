"""A whole pipeline on a hostile table."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from calve.api.maintain import compact, convert_deletes
from calve.lake import connect
from calve.reader.read import read
from tests.support import traps
from tests.support.pipelines import Pipelines


@pytest.mark.embedded
def test_no_property_of_a_table_runs_code_whatever_is_done_with_it(tmp_path: Path, spark: SparkSession) -> None:
    pipelines = Pipelines(tmp_path / "home", spark)
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "1.json").write_text('{"id": 1, "seq": 1, "v": "a"}\n{"id": 2, "seq": 2, "v": "b"}\n')
    (first,) = pipelines.run(f"""
        CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
        CREATE SOURCE s (id BIGINT, v STRING, PRIMARY KEY (id) NOT ENFORCED)
          FROM FILES (PATH = '{folder}', FORMAT = 'json') ENVELOPE UPSERT (ORDER BY seq);
        CREATE SINK s FROM s TO ICEBERG CATALOG lake NAMESPACE shop TABLE t;
    """)
    assert first.exit_code == 0, first.cause
    pipelines.table("shop.t").transaction().set_properties(traps.PROPERTIES).commit_transaction()
    (folder / "2.json").write_text('{"id": 2, "seq": 9, "v": "B"}\n{"id": 3, "seq": 3, "v": "c"}\n')
    traps.SPRUNG.clear()
    (second,) = pipelines.run()
    assert second.exit_code == 0, second.cause
    table = connect(home=pipelines.home).table("shop.t")
    assert sorted(tuple(row) for row in read(spark, table).collect()) == [(1, "a"), (2, "B"), (3, "c")]
    pipelines.apply("ANALYZE TABLE lake.shop.t REFRESH METADATA")
    compact(table)
    convert_deletes(table)
    assert pipelines.rows("shop.t", "id", "v") == [(1, "a"), (2, "B"), (3, "c")]
    assert traps.SPRUNG == []
