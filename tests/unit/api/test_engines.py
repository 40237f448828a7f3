"""`calve connect-info`: the recipes are run where the engine is installed; for the others their form is checked."""

import io
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from calve.api.engines import ReadableTable, Recipe, readable_table, recipe, recipes
from calve.cli.main import app
from calve.definitions.workplace import Workplace, workplace
from calve.errors import InvalidInput
from calve.model.connection import AwsConnection, CatalogConnection, CatalogType, Login, SecretRef
from calve.model.engine import ReadingEngine
from calve.model.spec import TableName
from calve.sql.parser import parse
from calve.statements.execute import execute
from tests.support.readers import ROOT, in_duckdb
from tests.unit.iceberg.sample import Sample

CHDB = ROOT / ".cache" / "chdb"
SECRET = SecretRef("1", "s3_key")
LOGIN = SecretRef("2", "login")
AWS = AwsConnection("AKIA", SECRET, region="eu-west-1", endpoint="http://127.0.0.1:9000")
ROLE = AwsConnection(role_arn="arn:aws:iam::1:role/r", region="eu-west-1")
CATALOGS = {
    "embedded": CatalogConnection(CatalogType.EMBEDDED),
    "rest": CatalogConnection(CatalogType.REST, "https://c/api", "w", credential=LOGIN, scope="ALL", aws=AWS),
    "rest-open": CatalogConnection(CatalogType.REST, "http://127.0.0.1:8181", "w"),
    "rest-token": CatalogConnection(CatalogType.REST, "https://c", token=LOGIN),
    "rest-basic": CatalogConnection(CatalogType.REST, "https://c", user="calve", password=LOGIN),
    "rest-oauth2": CatalogConnection(CatalogType.REST, "https://c", user="calve", password=LOGIN, login=Login.OAUTH2),
    "rest-signed": CatalogConnection(CatalogType.REST, "https://c", aws=ROLE),
    "s3tables": CatalogConnection(CatalogType.S3TABLES, warehouse="arn:aws:s3tables:eu-west-1:1:bucket/b", aws=AWS),
    "sql": CatalogConnection(
        CatalogType.SQL, "postgresql://db:5432/lake", "s3://b/w", user="calve", password=LOGIN, catalog_name="prod"
    ),
    "glue": CatalogConnection(CatalogType.GLUE, warehouse="s3://b/w", aws=ROLE),
    "hive": CatalogConnection(CatalogType.HIVE, "thrift://h:9083", "s3://b/w"),
}


def no_spark() -> NoReturn:
    raise AssertionError("Spark is not needed here")


@pytest.fixture
def sample(tmp_path: Path) -> Iterator[Sample]:
    table = Sample(tmp_path)
    table.commit({1: "a", 2: "b"})
    yield table
    table.close()


@pytest.fixture
def place(sample: Sample) -> Workplace:
    return workplace(sample.home, no_spark, {})


def made(place: Workplace, engine: ReadingEngine) -> Recipe:
    return recipe(readable_table(place, "shop.orders", None), engine)


def in_clickhouse(text: str, folder: Path) -> list[str]:
    """The rows in a process of its own; ClickHouse opens local files below its working directory only."""
    if not (CHDB / "complete").is_file():
        pytest.skip("there is no ClickHouse in .cache/chdb: it takes 600 MB, and scripts/fetch_chdb.py installs it")
    query = f"import chdb; print(chdb.query({text.rstrip(';' + chr(10))!r}, 'CSV'))"
    variables = {**os.environ, "PYTHONPATH": str(CHDB)}
    done = subprocess.run(
        [sys.executable, "-c", query], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.split())


def in_python(text: str) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Polars recommends a planner of its own
        exec(compile(text, "recipe", "exec"), {})  # noqa: S102 - the recipe itself
    return printed.getvalue()


def test_the_recipe_of_duckdb_reads_the_newest_snapshot_with_deletes_applied(place: Workplace, sample: Sample) -> None:
    text = made(place, ReadingEngine.DUCKDB).text
    assert sorted(in_duckdb(text)) == [(1, "a"), (2, "b")]
    sample.commit({3: "c"}, [1])
    assert sorted(in_duckdb(text)) == [(2, "b"), (3, "c")], "the same text, pasted later"


def test_the_recipes_of_pyiceberg_and_polars_read_the_rows(place: Workplace) -> None:
    found = in_python(made(place, ReadingEngine.PYICEBERG).text)
    assert re.search(r"id: \[\[1,2\]\]", found)
    pytest.importorskip("polars", reason="Polars is not installed")
    assert "│ 2" in in_python(made(place, ReadingEngine.POLARS).text)


@pytest.mark.slow
def test_the_recipe_of_clickhouse_reads_the_newest_snapshot_with_deletes_applied(
    place: Workplace, sample: Sample
) -> None:
    text = made(place, ReadingEngine.CLICKHOUSE).text
    assert in_clickhouse(text, place.home.parent) == ['1,"a"', '2,"b"']
    sample.commit({3: "c"}, [1])
    assert in_clickhouse(text, place.home.parent) == ['2,"b"', '3,"c"'], "the same text, pasted later"


@pytest.mark.parametrize("kind", CATALOGS)
def test_every_catalog_has_a_recipe_for_every_engine_and_no_secret(kind: str, tmp_path: Path) -> None:
    table = ReadableTable(
        TableName(("shop",), "orders"),
        CATALOGS[kind],
        None,
        tmp_path,
        "s3://b/w/shop/orders",
        "s3://b/w/shop/orders/metadata/00001-x.metadata.json",
    )
    found = {one.engine: one.text for one in recipes(table)}
    assert set(found) == set(ReadingEngine)
    for engine, text in found.items():
        assert "orders" in text, engine
        assert "None" not in text, (engine, text)
        if engine in {ReadingEngine.PYICEBERG, ReadingEngine.POLARS}:
            compile(text, "recipe", "exec")
    with_login = CATALOGS[kind].password or CATALOGS[kind].credential or CATALOGS[kind].token
    if with_login:
        assert all("<secret login>" in found[e] for e in (ReadingEngine.PYICEBERG, ReadingEngine.SPARK))
    if CATALOGS[kind].aws is AWS:
        assert "<secret s3_key>" in found[ReadingEngine.DUCKDB]


def test_names_of_sql_catalogs_are_those_under_which_the_tables_are(tmp_path: Path) -> None:
    table = ReadableTable(
        TableName(("shop",), "orders"), CATALOGS["sql"], None, tmp_path, "s3://b/o", "s3://b/o/metadata/1.metadata.json"
    )
    assert 'load_catalog("prod"' in recipe(table, ReadingEngine.PYICEBERG).text
    assert "spark.sql.catalog.prod.uri=jdbc:postgresql://db:5432/lake" in recipe(table, ReadingEngine.SPARK).text
    assert "postgresql://calve:<secret login>@db:5432/lake" in recipe(table, ReadingEngine.PYICEBERG).text


def test_tables_of_a_sql_catalog_are_kept_under_its_name(tmp_path: Path) -> None:
    place = workplace(tmp_path / "home", no_spark, {})
    uri = f"sqlite:///{tmp_path}/shared.db"
    options = f"TYPE = 'sql', URI = '{uri}', WAREHOUSE = 'file://{tmp_path}/w'"
    for statement in parse(
        f"CREATE CONNECTION ours TO ICEBERG CATALOG ({options}, CATALOG NAME = 'theirs');"
        f"CREATE CONNECTION plain TO ICEBERG CATALOG ({options})"
    ):
        execute(place, statement)
    from calve.pipeline.lakes import connected_lake  # noqa: PLC0415 - slow to import

    table = Sample(tmp_path, opened=connected_lake(tmp_path / "home", "ours").open())
    table.commit({1: "a"})
    text = recipe(readable_table(place, "ours.shop.orders", None), ReadingEngine.PYICEBERG).text
    assert 'load_catalog("theirs"' in text
    assert "[[1]]" in in_python(text)
    with pytest.raises(InvalidInput, match="does not exist"):
        readable_table(place, "plain.shop.orders", None)
    assert not list(tmp_path.glob("w/**/version-hint.text")), "another tool may commit to this catalog"
    table.close()


def test_the_command_prints_one_recipe_or_all(sample: Sample) -> None:
    given = ["connect-info", "shop.orders", "--home", str(sample.home)]
    everything = CliRunner().invoke(app, given, catch_exceptions=False).stdout
    assert all(f"-- {engine}" in everything for engine in ReadingEngine)
    one = CliRunner().invoke(app, [*given, "--engine", "duckdb"], catch_exceptions=False).stdout
    assert one.startswith("INSTALL iceberg;")
    assert "--" not in one
    done = subprocess.run([sys.executable, "-c", "import duckdb"], check=False)
    assert done.returncode == 0
