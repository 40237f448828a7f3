"""`calve init` and CREATE SOURCE ... INFER over folders, without Spark."""

import gzip
import json
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from typer.testing import CliRunner, Result

from calve.api.init import connection_to_create, propose_for_folder
from calve.cli.main import app
from calve.definitions.workplace import Workplace, workplace
from calve.errors import InvalidInput
from calve.sql.errors import SqlError
from calve.sql.parser import parse
from calve.sql.statements import CreateSource
from calve.statements.answers import TextAnswer
from calve.statements.reconcile import apply, plan


def no_spark() -> NoReturn:
    raise AssertionError("Spark is not needed here")


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return workplace(tmp_path / "home", no_spark, {})


def run(place: Workplace, text: str) -> list[str]:
    answers = list(apply(place, plan(place, parse(text))))
    return [answer.text for answer in answers if isinstance(answer, TextAnswer)]


def folder(tmp_path: Path, name: str, *files: list[dict[str, Any]]) -> Path:
    made = tmp_path / name
    made.mkdir()
    for number, rows in enumerate(files):
        (made / f"{number}.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return made


def test_inferred_columns_are_stored_as_declared_ones_and_later_files_do_not_change_them(
    place: Workplace, tmp_path: Path
) -> None:
    path = folder(tmp_path, "in", [{"id": 1, "at": "2026-01-01T00:00:00Z"}], [{"id": 2, "v": 0.5}])
    text = f"CREATE SOURCE s (PRIMARY KEY (id) NOT ENFORCED) FROM FILES (PATH = '{path}', FORMAT = 'json') INFER"
    (answer,) = run(place, text)
    assert answer.splitlines() == [
        "created source s",
        "columns inferred from 2 files, 2 records: id BIGINT, at TIMESTAMP, v DOUBLE",
        "  note: v: declare DECIMAL(18,2) if fractions must stay exact",
    ]
    (path / "2.json").write_text('{"id": "x", "other": true}\n')
    assert run(place, text) == []
    (shown,) = run(place, "SHOW CREATE SOURCE s")
    assert "INFER" not in shown
    (statement,) = parse(shown)
    assert isinstance(statement, CreateSource)
    assert [column.to_sql() for column in statement.columns] == ["id BIGINT", "at TIMESTAMP", "v DOUBLE"]


def test_declared_columns_win_over_inferred_ones_also_later(place: Workplace, tmp_path: Path) -> None:
    path = folder(tmp_path, "in", [{"id": 1, "amount": 1.5, "v": "x"}])
    source = f"FROM FILES (PATH = '{path}', FORMAT = 'json') INFER"
    run(place, f"CREATE SOURCE s (amount DECIMAL(12,2), PRIMARY KEY (id) NOT ENFORCED) {source}")
    (shown,) = run(place, "SHOW CREATE SOURCE s")
    (statement,) = parse(shown)
    assert isinstance(statement, CreateSource)
    assert [c.to_sql() for c in statement.columns] == ["id BIGINT", "amount DECIMAL(12,2)", "v STRING"]
    run(place, f"CREATE SOURCE s (amount DOUBLE, PRIMARY KEY (id) NOT ENFORCED) {source}")
    (shown,) = run(place, "SHOW CREATE SOURCE s")
    assert "(id BIGINT, amount DOUBLE, v STRING, PRIMARY KEY (id) NOT ENFORCED)" in " ".join(shown.split())
    with pytest.raises(SqlError, match='there is no key column "nr"'):
        run(place, f"CREATE SOURCE t (PRIMARY KEY (nr) NOT ENFORCED) {source}")


def test_fields_of_the_envelope_diff_are_no_columns(place: Workplace, tmp_path: Path) -> None:
    path = folder(tmp_path, "in", [{"id": 1, "t": 5, "d": 1}, {"t": 9, "p": True}])
    text = f"FROM FILES (PATH = '{path}', FORMAT = 'json') ENVELOPE DIFF (TIME t, DIFF d, PROGRESS p) INFER"
    (answer,) = run(place, f"CREATE SOURCE s {text}")
    assert answer.splitlines()[1].endswith(": id BIGINT")


def test_nothing_to_infer_from_is_an_error_that_says_so(place: Workplace, tmp_path: Path) -> None:
    path = folder(tmp_path, "in")
    with pytest.raises(InvalidInput, match="no records to infer columns from"):
        run(place, f"CREATE SOURCE s FROM FILES (PATH = '{path}', FORMAT = 'json') INFER")
    (path / "1.json").write_text("not json\n")
    with pytest.raises(InvalidInput, match="no records to infer") as caught:
        run(place, f"CREATE SOURCE s FROM FILES (PATH = '{path}', FORMAT = 'json') INFER")
    assert "it is not JSON" in caught.value.detail


def test_parquet_files_give_their_merged_schema_and_conflicts_are_named(place: Workplace, tmp_path: Path) -> None:
    path = folder(tmp_path, "in")
    stamp = pa.timestamp("us", "UTC")
    pq.write_table(pa.table({"id": pa.array([1], pa.int32()), "at": pa.array([0], stamp)}), path / "a.parquet")
    wide = {"id": pa.array([2], pa.int64()), "clock": pa.array([0], pa.time64("us")), "n": pa.array([None], pa.null())}
    pq.write_table(pa.table(wide), path / "b.parquet")
    source = f"FROM FILES (PATH = '{path}', FORMAT = 'parquet') INFER"
    (answer,) = run(place, f"CREATE SOURCE s {source}")
    lines = answer.splitlines()
    assert lines[1] == ("columns inferred from the schemas of 2 files, 1 row: id BIGINT, at TIMESTAMP, n STRING")
    assert "  note: clock: left out: Spark does not read time64[us]" in lines
    pq.write_table(pa.table({"id": ["x"]}), path / "c.parquet")
    with pytest.raises(InvalidInput, match='column "id" has different types') as caught:
        run(place, f"CREATE SOURCE t {source}")
    assert caught.value.detail == f"BIGINT in {path}/a.parquet, STRING in {path}/c.parquet."


def test_old_timestamps_of_parquet_and_those_of_orc_are_moments(place: Workplace, tmp_path: Path) -> None:
    table = pa.table({"id": [1], "at": pa.array([0], pa.timestamp("ns"))})
    for form in ("parquet", "orc"):
        path = folder(tmp_path, form)
        if form == "orc":
            orc.write_table(table, path / "a.orc")
        else:
            pq.write_table(table, path / "a.parquet", use_deprecated_int96_timestamps=True)
        (answer,) = run(place, f"CREATE SOURCE {form} FROM FILES (PATH = '{path}', FORMAT = '{form}') INFER")
        assert answer.splitlines()[1].endswith(": id BIGINT, at TIMESTAMP")


def test_csv_files_give_the_names_of_their_header(place: Workplace, tmp_path: Path) -> None:
    path = folder(tmp_path, "in")
    with gzip.open(path / "a.csv.gz", "wt") as file:
        file.write('id;name;zip;paid\n1;"a;b";01234;true\n2;;99999;false\n3;x\n')
    options = f"PATH = '{path}', FORMAT = 'csv', DELIMITER = ';'"
    (answer,) = run(place, f"CREATE SOURCE s FROM FILES ({options}, HEADER = true) INFER")
    lines = answer.splitlines()
    assert lines[1] == "columns inferred from 1 file, 3 records: id BIGINT, name STRING, zip STRING, paid BOOLEAN"
    assert "1 record of the sample cannot be read" in lines[2]
    (answer,) = run(place, f"CREATE SOURCE t FROM FILES ({options}) INFER")
    assert ": c1 STRING, c2 STRING, c3 STRING, c4 STRING" in answer.splitlines()[1]
    typed = f"FROM FILES ({options}, HEADER = true) INFER"
    (answer,) = run(place, f"CREATE SOURCE v (zip INT) {typed}")
    assert ": id BIGINT, name STRING, zip INT, paid BOOLEAN" in answer.splitlines()[1]
    with pytest.raises(InvalidInput, match='the files have no column "Zip"'):
        run(place, f"CREATE SOURCE w (Zip INT) {typed}")
    with pytest.raises(InvalidInput, match="not the last columns of the files"):
        run(place, f"CREATE SOURCE w FROM FILES ({options}, HEADER = true) ENVELOPE DIFF (TIME id, DIFF zip) INFER")
    with gzip.open(path / "b.csv.gz", "wt") as file:
        file.write("id;other\n1;2\n")
    with pytest.raises(InvalidInput, match="different headers") as caught:
        run(place, f"CREATE SOURCE u FROM FILES ({options}, HEADER = true) INFER")
    assert "a.csv.gz has id, name, zip, paid" in caught.value.detail


def test_a_byte_order_mark_is_no_part_of_a_name_or_a_record(place: Workplace, tmp_path: Path) -> None:
    csv, json = folder(tmp_path, "csv"), folder(tmp_path, "json")
    (csv / "a.csv").write_text("\ufeffid,name\n1,x\n", encoding="utf-8")
    (json / "a.json").write_text('\ufeff{"id": 1}\n', encoding="utf-8")
    (answer,) = run(place, f"CREATE SOURCE c FROM FILES (PATH = '{csv}', FORMAT = 'csv', HEADER = true) INFER")
    assert answer.splitlines()[1] == "columns inferred from 1 file, 1 record: id BIGINT, name STRING"
    (answer,) = run(place, f"CREATE SOURCE j FROM FILES (PATH = '{json}', FORMAT = 'json') INFER")
    assert answer.splitlines()[1:] == ["columns inferred from 1 file, 1 record: id BIGINT"]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.csv", "id,v\r\n1,a\r\n".encode("utf-16"), "not a valid CSV file"),
        ("a.parquet", b"PAR1 and nothing", "not a valid Parquet file"),
    ],
)
def test_a_file_of_another_format_is_named(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    path = folder(tmp_path, "in")
    (path / name).write_bytes(data)
    with pytest.raises(InvalidInput, match=words) as caught:
        propose_for_folder(str(path))
    assert str(path / name) in caught.value.detail
    assert caught.value.hint
    assert not caught.value.detail.endswith("..")


# ---- calve init


def proposed(path: Path) -> list[str]:
    """The lines of a proposal, which must be valid statements."""
    proposal = propose_for_folder(str(path))
    assert len(parse(proposal.text)) == 3
    assert proposal.text.count("-- guess: ") == proposal.guesses
    return proposal.text.splitlines()


def test_upserts_are_recognised_by_key_order_and_deletes(tmp_path: Path) -> None:
    rows = [
        {"id": 1, "amount": "1.50", "op": "i", "seq": 1, "created_at": "2026-01-01T00:00:00Z"},
        {"id": 1, "op": "u", "seq": 2},
    ]
    lines = proposed(folder(tmp_path, "orders", rows))
    assert "  id BIGINT NOT NULL," in lines
    assert not any(line.strip().startswith("op ") for line in lines)
    assert "ENVELOPE UPSERT (ORDER BY seq, DELETE WHEN op = 'd');" in lines
    assert "  PRIMARY KEY (id) NOT ENFORCED  -- guess: the key: its name, never null, 1 values in 2 records" in lines
    assert "-- PARTITION BY (day(created_at))  -- worth it for a large table" in lines


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([{"id": 1, "updated_at": "2026-01-01T00:00:00Z"}], "ENVELOPE UPSERT (ORDER BY updated_at);"),
        ([{"id": 1, "ts": 5, "_deleted": True}], "ENVELOPE UPSERT (ORDER BY ts, DELETE WHEN _deleted = 'true');"),
        ([{"id": 1, "lsn": 5, "__op": "D"}], "ENVELOPE UPSERT (ORDER BY lsn, DELETE WHEN __op = 'D');"),
        ([{"id": 1, "v": "x"}], "ENVELOPE NONE;"),
        ([{"customer_id": 1, "seq": 1}], "ENVELOPE UPSERT (ORDER BY seq);"),
        ([{"before": None, "after": {"id": 1}, "op": "c", "ts_ms": 1}], "ENVELOPE DEBEZIUM (ORDER BY ts_ms);"),
    ],
)
def test_envelopes_are_guessed_from_names_and_values(tmp_path: Path, rows: list[dict[str, Any]], expected: str) -> None:
    assert expected in proposed(folder(tmp_path, "customers", rows))


def test_without_a_key_every_record_is_kept(tmp_path: Path) -> None:
    lines = proposed(folder(tmp_path, "log", [{"line": "a", "n": None}, {"line": "a", "n": {"x": [1, "y"]}}]))
    assert lines[-1] == "MODE APPEND;"
    assert "  n STRUCT<x: ARRAY<STRING>>  -- guess: n.x[]: mixed: number, string" in lines


def test_a_repeated_id_without_an_order_is_no_key(tmp_path: Path) -> None:
    lines = proposed(folder(tmp_path, "log", [{"id": 1, "v": 1}, {"id": 1, "v": 2}]))
    assert "MODE APPEND;" in lines


def test_odd_names_stay_inside_their_quotes_and_comments(tmp_path: Path) -> None:
    odd = 'a"\n; DROP SINK s -- '
    lines = proposed(folder(tmp_path, "odd; x", [{odd: [1, "x"], "_calve_x": 1, "from": 1}]))
    text = "\n".join(lines)
    assert "DROP" in text
    assert "-- _calve_x: left out: the name is reserved" in lines


def _init(*more: str) -> Result:
    return CliRunner().invoke(app, ["init", "orders", *more])


def test_a_file_is_written_once_unless_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder(tmp_path, "orders", [{"id": 1, "seq": 1}])
    done = _init()
    assert done.exit_code == 0, done.output
    assert done.output == "wrote pipeline.sql from 1 file, 1 record; 2 guesses to look at\n"
    written = Path("pipeline.sql").read_text()
    Path("pipeline.sql").write_text("mine")
    refused = _init()
    assert isinstance(refused.exception, InvalidInput)
    assert refused.exception.primary == "pipeline.sql already exists"
    assert Path("pipeline.sql").read_text() == "mine"
    assert _init("--force").exit_code == 0
    assert Path("pipeline.sql").read_text() == written
    assert _init("--output", "-").output == written


def test_a_missing_folder_is_reported_before_a_file_that_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pipeline.sql").write_text("mine")
    refused = CliRunner().invoke(app, ["init", "nowhere"])
    assert isinstance(refused.exception, InvalidInput)
    assert "nowhere" in str(refused.exception)
    assert "pipeline.sql" not in str(refused.exception)


@pytest.mark.parametrize("place", [["orders"], ["topic", "--broker", "127.0.0.1:1"]])
def test_a_file_that_exists_is_reported_before_anything_is_read(
    place: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("orders").mkdir()
    Path("orders", "1.json").write_text("not a record")
    Path("pipeline.sql").write_text("mine")
    refused = CliRunner().invoke(app, ["init", *place])
    assert isinstance(refused.exception, InvalidInput)
    assert refused.exception.primary == "pipeline.sql already exists"


def test_unclear_formats_and_contradicting_options_are_refused(tmp_path: Path) -> None:
    path = folder(tmp_path, "mixed", [{"id": 1}])
    (path / "x.csv").write_text("id\n1\n")
    with pytest.raises(InvalidInput, match="is not clear") as caught:
        propose_for_folder(str(path))
    assert "1 file of format json, 1 file of format csv" in caught.value.detail
    assert propose_for_folder(f"{path}/*.csv").looked == "1 file, 1 record"
    for arguments in (["--registry", "http://x"], ["--broker", "b", "--connection", "k"]):
        found = CliRunner().invoke(app, ["init", "t", "-o", "-", *arguments])
        assert isinstance(found.exception, InvalidInput)


def test_a_folder_that_does_not_exist_may_be_a_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder(tmp_path, "orders", [{"id": 1}])
    with pytest.raises(InvalidInput, match="ordres does not exist") as caught:
        propose_for_folder("ordres")
    assert caught.value.hint == 'Did you mean "orders"? A topic needs --broker host:port, or --connection name.'


def test_a_proposal_names_its_own_file(tmp_path: Path) -> None:
    path = folder(tmp_path, "orders", [{"id": 1}])
    written = tmp_path / "my orders.sql"
    assert CliRunner().invoke(app, ["init", str(path), "-o", str(written)]).exit_code == 0
    assert f"--     calve run '{written}' --until-caught-up\n" in written.read_text()
    assert "--     calve run pipeline.sql " in propose_for_folder(str(path)).text


def test_a_proposed_connection_never_redirects_one_that_exists(place: Workplace, tmp_path: Path) -> None:
    assert connection_to_create(tmp_path / "none", "b:1") == "kafka"
    assert not (tmp_path / "none").exists()
    run(place, "CREATE CONNECTION Kafka TO KAFKA (BROKER = 'a:1') WITH (VALIDATE = false)")
    assert connection_to_create(place.home, "a:1") == "kafka"
    assert connection_to_create(place.home, "b:1") == "kafka_2"
    run(place, "CREATE CONNECTION kafka_2 TO AWS (REGION = 'r')")
    assert connection_to_create(place.home, "b:1") == "kafka_3"


def test_a_source_that_is_created_again_keeps_its_inferred_columns(place: Workplace, tmp_path: Path) -> None:
    path = folder(tmp_path, "orders", [{"id": 1, "seq": 1, "op": "u"}])
    text = f"CREATE SOURCE s (PRIMARY KEY (id) NOT ENFORCED) FROM FILES (PATH = '{path}', FORMAT = 'json') "
    run(place, text + "ENVELOPE UPSERT (ORDER BY seq) INFER")
    (path / "later.json").write_text('{"id": 2, "seq": 2, "op": "u", "later": true}\n')
    changed = text + "ENVELOPE UPSERT (ORDER BY seq, DELETE WHEN op = 'd') INFER"
    planned = plan(place, parse(changed))
    assert [step.action for step in planned.steps] == ["drop", "create"]
    run(place, changed)
    assert columns(place) == ["id", "op", "seq"]
    assert plan(place, parse(changed)).empty
    other = folder(tmp_path, "other", [{"id": 1, "seq": 1, "another": 1}])
    run(place, changed.replace(str(path), str(other)).replace(", DELETE WHEN op = 'd'", ""))
    assert columns(place) == ["another", "id", "seq"], "another folder has other columns"


def columns(place: Workplace) -> list[str]:
    (source,) = (d.statement for d in place.definitions() if isinstance(d.statement, CreateSource))
    return sorted(column.name.name for column in source.columns)
