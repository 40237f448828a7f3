"""A pipeline file that is edited while its sink runs, and plans of views, which need Spark."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from calve.cli.plan import apply_files
from calve.cli.show import console
from calve.definitions.workplace import Workplace, workplace
from calve.errors import InvalidInput
from calve.model.health import Health
from calve.statements.reconcile import plan, read_files
from tests.support.golden import CASES, check
from tests.support.pipelines import Pipelines, eventually
from tests.support.plans import Planned

FILE = """
CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE SOURCE people (id INT NOT NULL, name STRING, PRIMARY KEY (id) NOT ENFORCED)
  FROM FILES (PATH = '{folder}', FORMAT = 'json') ENVELOPE UPSERT (ORDER BY seq);
CREATE SINK s FROM people TO ICEBERG CATALOG lake NAMESPACE crm TABLE people;
"""
TABLE = "crm.people"


def test_plans_of_views_are_as_the_file_says_and_applying_them_leaves_nothing_to_do(
    spark: SparkSession, tmp_path: Path
) -> None:
    def at(home: Path) -> Workplace:
        return workplace(home, lambda: spark, {})

    check(CASES / "plan" / "views.txt", Planned(tmp_path, at).answer)


def test_a_running_table_gets_a_column_by_editing_the_file_and_a_dangerous_edit_stops(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipelines = Pipelines(tmp_path / "home", spark)
    folder, file = tmp_path / "in", tmp_path / "pipeline.sql"
    folder.mkdir()

    def add(number: int, **record: object) -> None:
        (folder / ".part").write_text(json.dumps({"seq": number, **record}) + "\n")
        (folder / ".part").rename(folder / f"{number}.json")

    def save(text: str, *, yes: bool = False) -> None:
        file.write_text(text.format(folder=folder))
        apply_files(console(quiet=True), pipelines.place, [file], prune=False, yes=yes)

    add(1, id=1, name="Ada")
    add(2, id=2, name="Bob")
    save(FILE)
    with pipelines.started() as running:
        eventually(lambda: pipelines.rows_or_none(TABLE) == [(1, "Ada"), (2, "Bob")])

        def save_and_restart(text: str, *, yes: bool = False) -> None:
            """What is read before the restart is read with the former columns."""
            (former,) = running.supervisor.runners
            save(text, yes=yes)
            eventually(lambda: former not in (running.supervisor.runners or [former]))

        save_and_restart(FILE.replace("name STRING", "name STRING, mail STRING"))
        add(3, id=2, name="Bob", mail="bob@example.org")
        add(4, id=3, name="Cy", mail="cy@example.org")
        after = [(1, "Ada", None), (2, "Bob", "bob@example.org"), (3, "Cy", "cy@example.org")]
        eventually(lambda: pipelines.rows(TABLE) == after)
        revision = pipelines.place.store.revision
        with pytest.raises(InvalidInput, match="nothing was changed"):
            save(FILE)  # without the column
        assert pipelines.place.store.revision == revision
        assert [status.health for status in running.supervisor.statuses()] == [Health.RUNNING]
        save_and_restart(FILE, yes=True)
        add(5, id=3, name="Cyd", mail="ignored")
        eventually(lambda: pipelines.rows(TABLE) == [*after[:2], (3, "Cyd", None)])
    assert plan(pipelines.place, read_files([file])).empty
