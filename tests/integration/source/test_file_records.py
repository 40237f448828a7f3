"""Files of all formats, read strictly."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from calve.clock import SystemClock
from calve.envelope.envelopes import changes_of, table_schema
from calve.errors import BadRow, InvalidInput, SourceLost, decode
from calve.model.change import BAD, DELETE, OP, UPSERT, Origin, letter_of
from calve.model.spec import Debezium, NoEnvelope, Upsert
from calve.records.frames import SOURCE_FILE, SOURCE_PROBLEM
from calve.source.files.definition import FileSource, files
from calve.storage.state import LocalState

SCHEMA = "id INT NOT NULL, amount DECIMAL(5,2), day DATE, at TIMESTAMP, op STRING, seq BIGINT"
ENVELOPE = Upsert(order_by=("seq",), delete_when="op = 'd'", columns="id, amount, day")


def opened(path: Path | str, tmp_path: Path, **options: Any) -> FileSource:
    chosen: dict[str, Any] = {"format": "json", "schema": SCHEMA, "envelope": ENVELOPE} | options
    return files(path, **chosen).open(LocalState(tmp_path / "state"), SystemClock())


def everything(spark: SparkSession, source: FileSource) -> DataFrame:
    end = source.next_end(None)
    frame = source.frame(spark, None, end)
    assert frame.schema == source.schema(spark)
    return frame


def problems(frame: DataFrame, envelope: Any = ENVELOPE, key: Sequence[str] = ("id",)) -> list[str]:
    found = [decode(r[BAD]) for r in changes_of(frame, envelope, key).collect() if r[BAD] is not None]
    assert all(isinstance(e, BadRow) for e in found)
    return [str(e) for e in found]


def put(folder: Path, name: str, *lines: str | bytes) -> Path:
    folder.mkdir(exist_ok=True)
    data = [line if isinstance(line, bytes) else line.encode() for line in lines]
    (folder / name).write_bytes(b"\n".join(data) + b"\n")
    return folder


def test_lines_of_json_become_changes(spark: SparkSession, tmp_path: Path) -> None:
    folder = put(
        tmp_path / "in",
        "a.json",
        '{"id": 1, "amount": 1.5, "day": "2024-02-29", "seq": 1, "unknown": {}}',
        "",
        '{"id": 2, "seq": 2, "op": "d"}\r',
    )
    source = opened(folder, tmp_path)
    frame = everything(spark, source)
    assert table_schema(source.schema(spark), ENVELOPE, ["id"]).names == ["id", "amount", "day"]
    rows = changes_of(frame, ENVELOPE, ["id"]).collect()
    assert [(r.id, str(r.amount), str(r.day), r[OP], r[BAD]) for r in rows] == [
        (1, "1.50", "2024-02-29", UPSERT, None),
        (2, "None", "None", DELETE, None),
    ]


def test_what_spark_would_take_in_silence_is_a_bad_row_that_names_the_file(spark: SparkSession, tmp_path: Path) -> None:
    lines: list[str | bytes] = [
        '{"id": 1, "seq": 1} trailing',
        '{"id": 1, "seq": 1}{"id": 2, "seq": 2}',
        '{"id": 1, "id": 2, "seq": 1}',
        '{"id": 1, "seq": 1, "amount": 12.345}',
        '{"id": 1, "seq": 1, "day": "2024-01-02Tjunk"}',
        '{"id": 1, "seq": 1, "at": "12:30"}',
        '{"id": 1, "seq": 1, "at": 1700000000}',
        '{"seq": 1}',
        '[{"id": 1, "seq": 1}]',
        b'{"id": 1, "seq": 1, "op": "\xff"}',
        '{"id": 1}',
    ]
    frame = everything(spark, opened(put(tmp_path / "in", "a.json", *lines), tmp_path))
    texts = problems(frame)
    assert len(texts) == len(lines)
    assert all("a.json" in text for text in texts)
    assert 'order field "seq"' in texts[-1]


def test_numbers_are_timestamps_when_their_unit_is_said(spark: SparkSession, tmp_path: Path) -> None:
    folder = put(tmp_path / "in", "a.json", '{"id": 1, "seq": 1, "at": 1700000000000}')
    (row,) = everything(spark, opened(folder, tmp_path, epoch_unit="ms")).collect()
    assert row["at"].timestamp() == 1_700_000_000
    with pytest.raises(InvalidInput, match="epoch_unit"):
        opened(folder, tmp_path, epoch_unit="hours")


def test_rows_of_csv_follow_the_same_rules(spark: SparkSession, tmp_path: Path) -> None:
    folder = put(
        tmp_path / "in",
        "a.csv",
        "id;s;amount",
        '1;"a;b";1.50',
        "2;;",
        "x;c;1",
        "4;d;1.555",
        "5;e;1;more",
        "6",
    )
    options = {"header": "true", "sep": ";"}
    source = opened(
        folder, tmp_path, format="csv", schema="id INT NOT NULL, s STRING, amount DECIMAL(5,2)", options=options
    )
    envelope = Upsert(order_by=("id",))
    rows = changes_of(everything(spark, source), envelope, ["id"]).collect()
    assert [(r.id, r.s, str(r.amount)) for r in rows if r[BAD] is None] == [(1, "a;b", "1.50"), (2, None, "None")]
    texts = [str(decode(r[BAD])) for r in rows if r[BAD]]
    assert ['"x"' in texts[0], "1.555" in texts[1], "columns than declared" in texts[2]] == [True, True, True]
    assert len(texts) == 4
    with pytest.raises(InvalidInput, match="CSV"):
        opened(folder, tmp_path, format="csv", schema="a ARRAY<INT>").schema(spark)


def test_csv_rows_that_are_not_utf_8_are_bad_rows_and_others_keep_their_text(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    lines = ["\ufeffid¦größe", "1¦žluťoučký 中 \U0001f600", '2¦"a¦b"', "3¦−", "4¦", "5¦ä", "6¦ü¦more"]
    data = "\n".join(lines).encode()
    (folder / "a.csv").write_bytes(data.replace("ä".encode(), b"\xe4") + b"\n")
    options = {"header": "true", "sep": "¦", "nullValue": "−"}
    source = opened(folder, tmp_path, format="csv", schema="id INT, `größe` STRING", options=options)
    rows = changes_of(everything(spark, source), Upsert(order_by=("id",)), ["id"]).collect()
    found = {r.id: r["größe"] for r in rows if r[BAD] is None}
    assert found == {1: "žluťoučký 中 \U0001f600", 2: "a¦b", 3: None, 4: None if found[4] is None else ""}
    letters = [letter_of(r[BAD]) for r in rows if r[BAD]]
    origins = [letter.origin for letter in letters if letter]
    assert [origin.value for origin in origins] == [b'{"id": "5", "gr\xc3\xb6\xc3\x9fe": "\xe4"}', "6¦ü¦more".encode()]
    assert ["not UTF-8" in str(decode(r[BAD])) for r in rows if r[BAD]] == [True, False]
    again = source.records_of(spark, [*origins, Origin(file="f", value='{"id": "7", "größe": "ü"}'.encode())])
    repeated = changes_of(again, Upsert(order_by=("id",)), ["id"]).collect()
    assert [(r.id, r["größe"]) for r in repeated if r[BAD] is None] == [(7, "ü")]
    left = [letter for r in repeated if (letter := letter_of(r[BAD] or ""))]
    assert [letter.origin.value for letter in left] == [origin.value for origin in origins]


def test_the_encoding_of_csv_files_may_be_given(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_bytes("1,ä\n".encode("latin-1"))
    options = {"encoding": "ISO-8859-1"}
    source = opened(tmp_path / "in", tmp_path, format="csv", schema="id INT, v STRING", options=options)
    assert [(r.id, r.v) for r in everything(spark, source).collect()] == [(1, "ä")]


def test_options_of_sparks_reader_are_honoured(spark: SparkSession, tmp_path: Path) -> None:
    folder = put(tmp_path / "in", "a.json", '[{"id": 1,', '"seq": 1}, {"id": 2, "seq": 2}]')
    frame = everything(spark, opened(folder, tmp_path, options={"multiLine": "true"}))
    assert sorted(r.id for r in frame.collect()) == [1, 2]
    lenient = put(tmp_path / "csv", "a.csv", "1,x", "2,3")
    source = opened(lenient, tmp_path / "2", format="csv", schema="a INT, b INT", options={"mode": "DROPMALFORMED"})
    assert [tuple(r) for r in everything(spark, source).select("a", "b").collect()] == [(2, 3)]


def test_parquet_files_keep_the_schema_of_the_first(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    spark.range(3).write.parquet(str(folder / "1"))
    source = opened(folder, tmp_path, format="parquet", schema=None)
    first = source.next_end(None)
    described = ["id", SOURCE_FILE, SOURCE_PROBLEM]
    assert source.schema(spark).names == described
    assert sorted(r.id for r in source.frame(spark, None, first).collect()) == [0, 1, 2]
    spark.range(5).selectExpr("id", "id as more").write.parquet(str(folder / "2"))
    assert source.frame(spark, first, source.next_end(first)).columns == described
    (tmp_path / "nothing").mkdir()
    with pytest.raises(InvalidInput, match="no file to infer a schema from"):
        opened(tmp_path / "nothing", tmp_path, format="parquet", schema=None).schema(spark)


def test_change_records_in_files_are_read_as_text_or_as_columns(spark: SparkSession, tmp_path: Path) -> None:
    good = '{"op": "c", "after": {"id": 1, "s": "a"}, "source": {"lsn": 7}}'
    folder = put(tmp_path / "in", "a.json", good, "broken")
    ddl = "op STRING, before STRUCT<id: INT, s: STRING>, after STRUCT<id: INT, s: STRING>, source STRUCT<lsn: BIGINT>"
    as_columns = opened(folder, tmp_path / "1", schema=ddl), Debezium(order_by=("source.lsn",))
    declared = Debezium(order_by=("source.lsn",), columns="id INT NOT NULL, s STRING")
    as_text = opened(folder, tmp_path / "2", format="text", schema=None), declared
    for source, envelope in (as_columns, as_text):
        rows = changes_of(everything(spark, source), envelope, ["id"]).collect()
        assert [(r.id, r.s, r[OP]) for r in rows if r[BAD] is None] == [(1, "a", UPSERT)]
        assert ["not JSON" in str(decode(r[BAD])) for r in rows if r[BAD]] == [True]


def test_a_file_that_grew_between_the_ledger_and_the_reading_is_named(spark: SparkSession, tmp_path: Path) -> None:
    folder = put(tmp_path / "in", "a.json", '{"id": 1, "seq": 1}')
    source = opened(folder, tmp_path)
    end = source.next_end(None)
    put(folder, "a.json", '{"id": 1, "seq": 1}', '{"id": 2, "seq": 2}')
    with pytest.raises(SourceLost, match=r"changed while it was read[\s\S]*a\.json"):
        source.frame(spark, None, end)
    again = opened(folder, tmp_path).next_end(None)
    assert again not in {None, end}, "nothing was recorded: a new entry takes the file as it is now"
    assert source.frame(spark, None, again).count() == 2


def test_a_range_of_several_checkpoints_is_read_at_once(spark: SparkSession, tmp_path: Path) -> None:
    folder = put(tmp_path / "in", "a.json", '{"id": 1, "seq": 1}')
    put(folder, "b.json", '{"id": 2, "seq": 2}')
    put(folder, "c.json", '{"id": 3, "seq": 3}')
    source = opened(str(folder) + "/*.json", tmp_path, max_files_per_checkpoint=1)
    ends = [source.next_end(None)]
    while (end := source.next_end(ends[-1])) is not None:
        ends.append(end)
    assert len(ends) == 3
    assert sorted(r.id for r in source.frame(spark, ends[0], ends[2]).collect()) == [2, 3]
    assert source.size(None, ends[2]).bytes == 3 * source.size(None, ends[0]).bytes  # type: ignore[operator]


def test_a_field_whose_name_differs_from_a_column_in_case_is_told_once(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = put(tmp_path / "in", "a.json", *['{"id": 1, "AMOUNT": 1.5, "Day": null, "seq": 1}'] * 5)
    put(tmp_path / "in", "b.json", '{"id": 2, "AMOUNT": 2.5, "seq": 1}', '{"id": 3, "amount": 3.5, "seq": 1}')
    frame = everything(spark, opened(folder, tmp_path))
    assert sorted(str(r.amount) for r in frame.collect()) == ["3.50", *["None"] * 6]
    assert len(frame.collect()) == 7
    told = [record.getMessage() for record in caplog.records if "case-sensitive" in record.getMessage()]
    assert len(told) == 2
    assert told[0].startswith('column "amount" is null: the records have no such field, but "AMOUNT".')
    assert told[1].startswith('column "day" is null')


def test_a_bad_row_of_a_typed_file_names_the_file(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    spark.sql("SELECT 1 AS id, cast(X'ff41' AS STRING) AS name, 1L AS seq").write.parquet(str(folder))
    (file,) = (path.name for path in folder.glob("*.parquet"))
    upsert = Upsert(order_by=("seq",), columns="id, name")
    for schema in (None, "id INT, name STRING, seq BIGINT"):
        source = opened(folder, tmp_path, format="parquet", schema=schema, envelope=upsert)
        frame = everything(spark, source)
        assert table_schema(source.schema(spark), upsert, ["id"]).names == ["id", "name"]
        (problem,) = problems(frame, upsert)
        assert f"file file://{folder}/{file}" in problem


def test_a_column_named_value_of_files_is_no_json(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    spark.sql("SELECT 'plain' AS value").write.parquet(str(folder))
    cases: list[tuple[Any, list[str]]] = [(NoEnvelope(), []), (Upsert(order_by=("value",)), ["value"])]
    for envelope, key in cases:
        frame = everything(spark, opened(folder, tmp_path, format="parquet", schema=None, envelope=envelope))
        assert [(r.value, r[BAD]) for r in changes_of(frame, envelope, key).collect()] == [("plain", None)]
