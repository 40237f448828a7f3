"""Scripts and what they answer, each in a fresh home folder: tests/cases/statements/*.txt.

The home has an embedded catalog `lake`, an AWS connection `aws`, a secret `k` from the environment, and the sources
`orders` (generator), `events` (JSON files) and `keyless`. No Spark is there.
"""

import shutil
import stat
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType

from calve.catalog.connect import connect_embedded
from calve.definitions.edits import Steps
from calve.definitions.objects import ConcurrentEdit
from calve.definitions.pending import PendingEdits
from calve.definitions.store import Definitions
from calve.definitions.workplace import Workplace, workplace
from calve.errors import CalveError, InvalidInput
from calve.lake import Lake
from calve.model.connection import AwsConnection, CatalogConnection
from calve.model.progress import Fence, Progress, property_key
from calve.pipeline.lakes import lake_of
from calve.sql.parser import parse
from calve.sql.statements import CreateSink, ObjectKind
from calve.statements.answers import Outcome, QueryAnswer, TextAnswer
from calve.statements.execute import execute
from tests.support.answers import names_of, rows_of
from tests.support.golden import cases_of, check, error_lines
from tests.support.threads import in_threads

CASES = cases_of("statements")
PRELUDE = """
CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE SECRET k FROM ENV 'K';
CREATE CONNECTION aws TO AWS (ACCESS KEY ID = 'AKIA', SECRET ACCESS KEY = SECRET k, REGION = 'eu-west-1');
CREATE CONNECTION broker TO KAFKA (BROKER = 'localhost:9092') WITH (VALIDATE = false);
CREATE SOURCE orders FROM LOAD GENERATOR orders (ROWS = 100);
CREATE SOURCE events (id BIGINT NOT NULL, "Total" DECIMAL(12,2), ratio DOUBLE, PRIMARY KEY (id) NOT ENFORCED)
  FROM FILES (PATH = '/in/events', FORMAT = 'json') ENVELOPE UPSERT (ORDER BY seq, DELETE WHEN op = 'd');
CREATE SOURCE keyless (id BIGINT, v STRING) FROM FILES (PATH = '/in/keyless', FORMAT = 'csv');
CREATE SOURCE changes (id BIGINT NOT NULL, v STRING, PRIMARY KEY (id) NOT ENFORCED)
  FROM FILES (PATH = '/in/changes', FORMAT = 'json') ENVELOPE DEBEZIUM (ORDER BY source.lsn);
"""


def no_spark() -> NoReturn:
    raise AssertionError("Spark is not needed here")


def at(home: Path, **environment: str) -> Workplace:
    return workplace(home, no_spark, {"K": "kept outside", **environment})


def lines_of(outcome: Outcome) -> list[str]:
    if isinstance(outcome, TextAnswer):
        return outcome.text.split("\n")
    if isinstance(outcome, QueryAnswer):
        rows = [names_of(outcome.found), *rows_of(outcome.found)]
        return [" | ".join(map(str, row)).rstrip() for row in rows]
    return [" | ".join(row).rstrip() for row in (outcome.headings, *outcome.rows)]


def revisions_seen_during(place: Workplace, text: str, monkeypatch: pytest.MonkeyPatch) -> list[Definitions]:
    """The definitions after every edit that a statement makes."""
    found: list[Definitions] = []
    really = PendingEdits.add

    def watched(pending: PendingEdits, steps: Steps) -> None:
        really(pending, steps)
        found.append(place.definitions())

    monkeypatch.setattr(PendingEdits, "add", watched)
    run(place, text)
    return found


def run(place: Workplace, text: str) -> list[str]:
    found: list[str] = []
    for statement in parse(text):
        found += lines_of(execute(place, statement))
    return found


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    made = at(tmp_path / "home")
    run(made, PRELUDE)
    return made


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_scripts_answer_what_the_file_says(path: Path, tmp_path: Path) -> None:
    home, fresh = tmp_path / "home", tmp_path / "fresh"
    run(at(home), PRELUDE)
    home.rename(fresh)

    def answer(text: str) -> list[str]:
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(fresh, home)  # quicker than the statements; and tables are where they say that they are
        made = at(home)
        found: list[str] = []
        try:
            for statement in parse(text):
                found += lines_of(execute(made, statement))
        except CalveError as error:
            found += error_lines(error)
        return found

    check(path, answer)


def test_folders_are_stored_as_absolute_paths(place: Workplace) -> None:
    run(place, "CREATE SOURCE s (id BIGINT) FROM FILES (PATH = 'in', FORMAT = 'json')")
    assert f"PATH = '{Path.cwd() / 'in'}'" in "\n".join(run(place, "SHOW CREATE SOURCE s"))


def test_literal_secrets_are_nowhere_but_in_files_of_mode_0600(place: Workplace) -> None:
    run(
        place,
        "CREATE SECRET s AS 'wolfram-1'; CREATE CONNECTION a TO AWS (ACCESS KEY ID 'x', SECRET ACCESS KEY 'wolfram-2')",
    )
    shown = run(place, "SHOW SECRETS; SHOW CONNECTIONS; SHOW CREATE SECRET s; SHOW CREATE CONNECTION a")
    assert "wolfram" not in "\n".join(shown)
    holding = [file for file in place.home.rglob("*") if file.is_file() and b"wolfram" in file.read_bytes()]
    assert {file.parent.name for file in holding} == {"secrets"}
    assert [stat.S_IMODE(file.stat().st_mode) for file in holding] == [0o600] * 2
    assert stat.S_IMODE((place.home / "secrets").stat().st_mode) == 0o700
    run(place, "DROP CONNECTION a; DROP SECRET s")
    assert list((place.home / "secrets").iterdir()) == []


def test_a_refused_connection_leaves_no_secret_behind(place: Workplace) -> None:
    with pytest.raises(InvalidInput, match="needs ACCESS KEY ID"):
        run(place, "CREATE CONNECTION a TO AWS (SECRET ACCESS KEY 'wolfram')")
    assert not list(place.home.glob("secrets/*"))
    assert "a.secret_access_key" not in "\n".join(run(place, "SHOW SECRETS"))


def test_altering_a_literal_to_a_named_secret_forgets_the_literal(place: Workplace) -> None:
    run(place, "CREATE CONNECTION c TO AWS (ACCESS KEY ID = 'x', SECRET ACCESS KEY = 'wolfram')")
    assert len(list((place.home / "secrets").iterdir())) == 1
    run(place, "ALTER CONNECTION c SET (SECRET ACCESS KEY = SECRET k)")
    assert list((place.home / "secrets").iterdir()) == []
    assert "c.secret_access_key" not in "\n".join(run(place, "SHOW SECRETS"))
    assert "SECRET ACCESS KEY = SECRET k" in "\n".join(run(place, "SHOW CREATE CONNECTION c"))


def test_the_same_value_again_is_no_change(place: Workplace) -> None:
    run(
        place,
        "CREATE SINK s FROM orders TO ICEBERG CATALOG lake NAMESPACE shop TABLE orders WITH (COMMIT INTERVAL '1m')",
    )
    revision = place.store.revision
    same = "ALTER SINK s SET (COMMIT INTERVAL '1m'); ALTER SINK s SET FROM orders; ALTER SINK s RESUME"
    assert run(place, same) == ['sink "s" is unchanged'] * 3
    assert place.store.revision == revision


def test_concurrent_edits_are_detected(place: Workplace) -> None:
    run(place, "CREATE SINK s FROM orders TO ICEBERG CATALOG lake NAMESPACE shop TABLE orders")
    (found,) = place.definitions().of(ObjectKind.SINK)
    run(place, "ALTER SINK s PAUSE")
    with pytest.raises(ConcurrentEdit, match='another process changed sink "s"'):
        place.store.replace(found)
    with pytest.raises(ConcurrentEdit):
        place.store.drop([found])
    assert place.definitions().of(ObjectKind.SINK)[0].version == 2


def test_of_many_who_create_one_name_one_succeeds(place: Workplace) -> None:
    text = "CREATE SOURCE raced FROM LOAD GENERATOR orders"
    results: list[str] = []

    def create(_: int) -> None:
        try:
            results.extend(run(at(place.home), text))
        except InvalidInput as error:
            results.append(error.primary)

    in_threads(create, range(8))
    assert sorted(results) == ["created source raced", *['source "raced" already exists'] * 7]


def test_a_sink_that_is_dropped_and_created_again_needs_to_be_told_how_to_begin(place: Workplace) -> None:
    create = "CREATE SINK s FROM orders TO ICEBERG CATALOG lake NAMESPACE shop TABLE orders"
    run(place, create)
    (old,) = place.definitions().of(ObjectKind.SINK)
    catalog = connect_embedded(place.home)
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.orders", Schema(), properties={f"calve.sink.{old.uid}": stated(old.uid)})
    run(place, "DROP SINK s")
    with pytest.raises(InvalidInput, match="has the progress of a dropped sink") as caught:
        run(place, create)
    assert "RESUME = true" in caught.value.hint
    run(place, create + " WITH (RESUME = true)")
    (new,) = place.definitions().of(ObjectKind.SINK)
    assert (new.uid, new.version) == (old.uid, 4)
    run(place, "DROP SINK s; " + create + " WITH (SNAPSHOT = true)")
    (anew,) = place.definitions().of(ObjectKind.SINK)
    assert anew.uid != old.uid
    assert anew.standing.generation == 1
    assert isinstance(anew.statement, CreateSink)
    assert table.name() == ("shop", "orders")


def test_consumers_are_looked_up_with_the_credentials_of_the_sinks(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(
        place,
        """
        CREATE SINK s FROM orders TO ICEBERG CATALOG lake USING AWS CONNECTION aws NAMESPACE shop TABLE written;
        CREATE SOURCE c FROM ICEBERG TABLE lake.shop.read;
        """,
    )
    used: list[AwsConnection | None] = []

    def noting(home: Path, catalog: CatalogConnection, store: AwsConnection | None, *others: Any) -> Lake:
        used.append(store)
        return lake_of(home, catalog, store, *others)

    monkeypatch.setattr("calve.statements.consumers.lake_of", noting)
    assert run(place, "SHOW CONSUMERS") == ["consumer | sink | table | snapshot | behind | since | kept until"]
    assert [store and store.access_key_id for store in used] == ["AKIA", "AKIA"], "of the table that is only read, too"


def test_a_sink_upgrades_only_a_table_that_it_has_written_to(place: Workplace) -> None:
    create = "CREATE SINK s FROM orders TO ICEBERG CATALOG lake NAMESPACE shop TABLE orders"
    run(place, create)
    run(place, "ALTER SINK s SET (FORMAT VERSION = 3, DELETES = 'vector')")
    run(place, "ALTER SINK s RESET (FORMAT VERSION, DELETES)")
    catalog = connect_embedded(place.home)
    catalog.create_namespace("shop")
    catalog.create_table("shop.orders", Schema(), properties={"format-version": "2"})
    with pytest.raises(InvalidInput, match="has another format version"):
        run(place, "ALTER SINK s SET (FORMAT VERSION = 3)")
    run(place, "ALTER SINK s SET (FORMAT VERSION = 2)")
    run(place, "DROP SINK s")
    with pytest.raises(InvalidInput, match="has another format version") as caught:
        run(place, create + " WITH (FORMAT VERSION = 3)")
    assert "Leave out FORMAT VERSION" in caught.value.hint
    run(place, create)
    sink = next(d for d in place.definitions() if d.name == "s")
    with catalog.load_table("shop.orders").transaction() as change:
        change.set_properties({property_key(sink.uid): stated(sink.uid)})
    run(place, "ALTER SINK s SET (FORMAT VERSION = 3)")
    assert catalog.load_table("shop.orders").format_version == 2, "its next batch upgrades it"
    with catalog.load_table("shop.orders").update_schema() as update:
        update.add_column("_last_updated_sequence_number", LongType())
    run(place, "ALTER SINK s RESET (FORMAT VERSION)")
    with pytest.raises(InvalidInput, match="cannot be upgraded to format version 3"):
        run(place, "ALTER SINK s SET (FORMAT VERSION = 3)")


def stated(sink_id: str) -> str:
    return Progress.fresh(sink_id, Fence(3, 1, "run")).to_property()


@pytest.mark.parametrize("name", ["a b", "-a", "a" * 65, "a/b"])
def test_the_name_of_a_consumer_is_checked_when_its_source_is_created(place: Workplace, name: str) -> None:
    with pytest.raises(InvalidInput, match=f'"{name}" is not a valid name for a consumer'):
        run(place, f"CREATE SOURCE c FROM ICEBERG TABLE lake.shop.read (CONSUMER = '{name}')")


def test_the_start_of_a_source_is_looked_up_in_its_table_when_it_is_created(place: Workplace) -> None:
    run(place, "CREATE SOURCE later FROM ICEBERG TABLE lake.shop.read (START = 'never')")  # it may be a tag by then
    catalog = connect_embedded(place.home)
    catalog.create_namespace("shop")
    catalog.create_table("shop.read", Schema(), properties={"format-version": "2"})
    for start in ("snapshot", "latest", "earliest"):
        run(place, f"CREATE SOURCE {start} FROM ICEBERG TABLE lake.shop.read (START = '{start}')")
    with pytest.raises(InvalidInput, match='"never" is neither a snapshot, nor a time, nor a frontier'):
        run(place, "CREATE SOURCE c FROM ICEBERG TABLE lake.shop.read (START = 'never')")
    with pytest.raises(InvalidInput, match='"never" is neither'):
        run(place, "ALTER SOURCE latest SET (START = 'never')")


def test_a_connection_and_its_new_password_are_altered_in_one_edit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = at(tmp_path)
    run(place, "CREATE CONNECTION a TO AWS (ACCESS KEY ID = 'AKIA', SECRET ACCESS KEY = 'one')")
    seen = revisions_seen_during(place, "ALTER CONNECTION a SET (SECRET ACCESS KEY = 'two')", monkeypatch)
    assert len(seen) == 1, "a running sink would see a connection whose secret is missing"
    (connection,) = seen[0].of(ObjectKind.CONNECTION)
    (secret,) = seen[0].of(ObjectKind.SECRET)
    assert connection.uses == (secret.uid,)
    assert place.vault.value(secret) == "two"
