"""Dead letters come back once their cause is gone: those that can be converted are applied once, the others stay."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from calve.api.replay import replay_letters
from calve.errors import InvalidInput
from calve.model.health import Health
from tests.support.homes import status_of, write
from tests.support.pipelines import Pipelines

BIG = 3_000_000_000
SINKS = """
CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE SOURCE items (id BIGINT NOT NULL, n INT, PRIMARY KEY (id) NOT ENFORCED)
  FROM FILES (PATH = '{0}/items', FORMAT = 'json') ENVELOPE UPSERT (ORDER BY seq GLOBAL, DELETE WHEN op = 'd');
CREATE SOURCE rows (id BIGINT, n INT) FROM FILES (PATH = '{0}/rows', FORMAT = 'csv');
CREATE SINK items FROM items TO ICEBERG CATALOG lake NAMESPACE "x" TABLE "items"
  WITH (ON BAD ROW = 'dead letter', COMMIT INTERVAL = '1h', CHECKPOINT INTERVAL = '1h');
CREATE SINK rows FROM rows TO ICEBERG CATALOG lake NAMESPACE "x" TABLE "rows" MODE APPEND
  WITH (ON BAD ROW = 'dead letter');
"""


def line(id_: int, n: Any, seq: int) -> str:
    return json.dumps({"id": id_, "n": n, "seq": seq})


def test_letters_are_applied_in_their_order_once_the_columns_fit(tmp_path: Path, spark: SparkSession) -> None:
    pipelines = Pipelines(tmp_path / "home", spark)
    for name in ("items", "rows"):
        (tmp_path / name).mkdir()
    twice = line(3, BIG, 2)
    lines = [line(1, 1, 1), line(2, BIG, 1), twice, twice, line(4, "x", 1), "not JSON"]
    (tmp_path / "items" / "1.json").write_text("\n".join(lines))
    (tmp_path / "items" / "2.json").write_text(line(2, 7, 5))  # newer than the letter of its key
    (tmp_path / "rows" / "1.csv").write_text(f"1,1\n2,{BIG}\n3,{BIG}\n3,{BIG}\n4,x\n1,2,3\n")
    pipelines.apply(SINKS.format(tmp_path))
    assert [(r.cause, r.pending) for r in pipelines.run()] == [(None, 0)] * 2
    assert len(pipelines.rows("x.items_dead_letters", "value")) == len(lines) - 1

    pipelines.apply("ALTER SOURCE items SET COLUMNS (id BIGINT NOT NULL, n BIGINT)")
    pipelines.apply("ALTER SOURCE rows SET COLUMNS (id BIGINT, n BIGINT)")
    before = pipelines.table("x.rows").metadata_location
    tried = replay_letters(pipelines.place, "rows", dry_run=True)
    assert (tried.applied, tried.left, tried.dry_run) == (3, 2, True)
    assert pipelines.table("x.rows").metadata_location == before, "a dry run changes nothing"

    items = replay_letters(pipelines.place, "items")
    assert (items.applied, items.left, len(items.snapshots)) == (3, 2, 1)
    assert dict(items.failed)['column "n" is "x", which is not BIGINT'] == 1
    assert pipelines.rows("x.items", "id", "n") == [(1, 1), (2, 7), (3, BIG)]
    assert pipelines.rows("x.items_dead_letters", "value") == [(b"not JSON",), (line(4, "x", 1).encode(),)]

    assert replay_letters(pipelines.place, "rows", reason="nothing like it").applied == 0
    rows = replay_letters(pipelines.place, "rows")
    assert (rows.applied, rows.left) == (3, 2)
    assert replay_letters(pipelines.place, "rows").applied == 0, "each is applied once"
    assert pipelines.rows("x.rows", "id", "n") == [(1, 1), (2, BIG), (3, BIG), (3, BIG)]
    left = pipelines.rows("x.rows_dead_letters", "value", "reason")
    assert left == [
        (b"1,2,3", "it has more or fewer columns than declared"),
        (b'{"id": "4", "n": "x"}', 'column "n" is "x", which is not INT'),
    ]

    (tmp_path / "rows" / "2.csv").write_text(f"5,{BIG}\n")
    assert [(r.cause, r.pending) for r in pipelines.run()] == [(None, 0)] * 2
    write(pipelines.home, status_of("rows", Health.RUNNING))
    with pytest.raises(InvalidInput, match='sink "rows" is running'):
        replay_letters(pipelines.place, "rows")
    assert pipelines.rows("x.rows", "id", "n") == [(1, 1), (2, BIG), (3, BIG), (3, BIG), (5, BIG)]
