"""Commands that need neither Spark nor Iceberg do not import them: the imports alone take seconds."""

import subprocess
import sys
from pathlib import Path

import pytest

from calve.definitions.in_metastore import MetastoreDefinitions
from calve.definitions.objects import Definition, read_statement
from calve.definitions.store import HomeDefinitions
from calve.metastore.config import MetastoreConfig
from calve.metastore.metastore import Metastore
from calve.metastore.tables import open_tables
from tests.unit.metastore.sample import GENERAL

pytestmark = pytest.mark.long

HEAVY = {"numpy", "pandas", "py4j", "pyarrow", "pydantic", "pyiceberg", "pyspark", "requests", "sqlalchemy"}
PROBE = """
import sys
from contextlib import suppress
from calve.cli.main import main
with suppress(SystemExit):
    main()
sys.stdout.flush()
print("imported:", *sorted({name.partition(".")[0] for name in sys.modules}))
"""


def run(*arguments: str, home: Path | None = None) -> tuple[str, set[str]]:
    """What a command prints, and the packages that it imported."""
    given = [*arguments, *(["--home", str(home)] if home else [])]
    done = subprocess.run([sys.executable, "-c", PROBE, *given], capture_output=True, text=True, check=True)
    printed, _, imported = done.stdout.rpartition("imported:")
    assert "error:" not in done.stderr, done.stderr
    return printed, set(imported.split())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a secret, a connection, a source and a sink; its definitions were read once."""
    folder = tmp_path_factory.mktemp("home")
    statements = f"""
        CREATE SECRET password AS 'hidden';
        CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
        CREATE SOURCE orders (id BIGINT NOT NULL, amount DECIMAL(12,2), PRIMARY KEY (id) NOT ENFORCED)
          FROM FILES (PATH = '{folder}', FORMAT = 'json') ENVELOPE UPSERT (ORDER BY id);
        CREATE SINK shop FROM orders TO ICEBERG CATALOG lake NAMESPACE "shop" TABLE "orders" MODE UPSERT;
    """
    printed, imported = run("sql", statements, home=folder)
    assert "created sink shop" in printed
    assert imported & HEAVY == set(), "CREATE statements without views need neither Spark nor Iceberg"
    return folder


def test_importing_calve_imports_nothing_else() -> None:
    code = "import calve, sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & (HEAVY | {"rich", "typer"})


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"], ["read", "--help"]])
def test_help_and_version_import_nothing_heavy(arguments: list[str]) -> None:
    printed, imported = run(*arguments)
    assert "calve" in printed
    assert imported & HEAVY == set()


def test_status_imports_nothing_heavy(home: Path) -> None:
    printed, imported = run("status", home=home)
    assert printed
    assert imported & HEAVY == set()


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("SHOW SINKS", "never run"),
        ("SHOW TABLES", "connection"),
        ("SHOW CREATE SOURCE orders", "DECIMAL(12,2)"),
        ("SHOW OPTIONS LIKE 'COMMIT%'", "COMMIT INTERVAL"),
        ("CREATE SECRET IF NOT EXISTS password AS 'other'", "already exists"),
        ("CREATE SINK IF NOT EXISTS shop FROM orders TO ICEBERG CATALOG lake NAMESPACE a TABLE b", "already exists"),
        ("CREATE SECRET fresh FROM ENV 'X'; ALTER SECRET fresh FROM ENV 'Y'; DROP SECRET fresh", "dropped secret"),
        ("EXPLAIN CREATE SINK s FROM orders TO ICEBERG CATALOG lake NAMESPACE a TABLE b MODE UPSERT", "json files"),
    ],
)
def test_statements_about_definitions_import_nothing_heavy(home: Path, statement: str, expected: str) -> None:
    printed, imported = run("sql", statement, home=home)
    assert expected in printed
    assert imported & HEAVY == set()


def test_queries_of_information_schema_import_nothing_heavy(home: Path) -> None:
    with Metastore(MetastoreConfig.load(home, {})) as metastore:
        open_tables(metastore).modify().overwrite(GENERAL).execute()
    assert "pyiceberg" in run("sql", "SELECT 1 FROM INFORMATION_SCHEMA.TABLES", home=home)[1], "there is no copy yet"
    for output in ("table", "json", "csv"):
        query = "SELECT * FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_NAME = 'nation' ORDER BY LAST_MODIFIED_TIME"
        printed, imported = run("sql", query, "--format", output, home=home)
        assert "nation" in printed
        assert imported & HEAVY == set()


@pytest.mark.parametrize("statement", ["SELECT 1 AS one", "SHOW SINKS"])
@pytest.mark.parametrize("output", ["json", "csv"])
def test_answers_for_programs_import_nothing_heavy(home: Path, statement: str, output: str) -> None:
    printed, imported = run("sql", statement, "--format", output, home=home)
    assert printed.strip()
    assert imported & HEAVY == set()


def test_a_plan_imports_nothing_heavy(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "p.sql"
    file.write_text("CREATE SECRET password AS 'other'; CREATE VIEW v AS SELECT id FROM orders;")
    printed, imported = run("plan", str(file), home=home)
    assert "ALTER SECRET password AS <hidden>;" in printed
    assert "CREATE VIEW v AS SELECT id FROM orders;" in printed
    assert imported & HEAVY == set()


def test_the_copy_of_the_definitions_is_not_used_once_they_changed(tmp_path: Path) -> None:
    store = MetastoreDefinitions(tmp_path, {})
    store.create([Definition("a", 1, read_statement("CREATE SECRET a FROM ENV 'A'"))])
    HomeDefinitions(tmp_path, {}).all()
    before = (tmp_path / "definitions.copy").read_bytes()
    assert run("sql", "SHOW SECRETS", home=tmp_path)[1] & HEAVY == set()
    store.create([Definition("b", 1, read_statement("CREATE SECRET b FROM ENV 'B'"))])
    printed, imported = run("sql", "SHOW SECRETS", home=tmp_path)
    assert "a " in printed
    assert "b " in printed
    assert "pyiceberg" in imported
    for damage in (before, b"", b"{", b'{"format": 0}', b"[]"):
        (tmp_path / "definitions.copy").write_bytes(damage)
        assert [one.name for one in HomeDefinitions(tmp_path, {}).all()] == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sql", "SHOW SINKS", "--format", "jsno"], "'jsno' is not one of 'table', 'json', 'csv'"),
        (["read", "shop.orders", "--limit", "x"], "Invalid value for '--limit'"),
        (["read", "shop.orders", "--limit", "-1"], "Invalid value for '--limit'"),
        (["serve", "--port", "65536"], "Invalid value for '--port'"),
        (["completion", "tcsh"], "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
        (["statsu"], "Did you mean 'status'?"),
    ],
)
def test_unusual_values_are_still_checked(arguments: list[str], said: str) -> None:
    done = subprocess.run([sys.executable, "-m", "calve", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.replace("│", " ").split())


def test_python_m_calve_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "calve", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("calve ")
