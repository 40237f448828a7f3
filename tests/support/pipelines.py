"""Pipelines in the home folder of a test: statements, runs, and the rows of tables afterwards."""

import threading
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from calve.catalog.connect import connect_embedded
from calve.definitions.workplace import Workplace, workplace
from calve.pipeline.query import Query
from calve.pipeline.supervisor import SinkResult, Supervisor
from calve.sql.parser import parse
from calve.sql.statements import Create
from calve.statements.execute import execute
from calve.statements.reconcile import apply, plan
from tests.support.readers import duckdb_rows

PATIENCE = 120.0


class Pipelines:
    """One home folder."""

    def __init__(self, home: Path, spark: SparkSession, environment: Mapping[str, str] | None = None) -> None:
        self.home = home
        self.place: Workplace = workplace(home, lambda: spark, environment or {})

    def apply(self, text: str) -> None:
        for statement in parse(text):
            if isinstance(statement, Create):
                planned = plan(self.place, [statement])
                assert not planned.blocked, planned.blocked
                list(apply(self.place, planned))
            else:
                execute(self.place, statement)

    def run(self, text: str = "") -> list[SinkResult]:
        """Apply statements, catch up, stop."""
        self.apply(text)
        return Supervisor(self.place, until_caught_up=True).run()

    def started(self) -> "Running":
        return Running(Supervisor(self.place, until_caught_up=False))

    @cached_property
    def _catalog(self) -> Catalog:
        """Tests ask again and again: a new connection takes longer than DuckDB takes to read a small table."""
        return connect_embedded(self.home)

    def table(self, name: str) -> Table:
        return self._catalog.load_table(name)

    def rows(self, name: str, *columns: str, snapshot_id: int | None = None) -> list[tuple[Any, ...]]:
        """Return the sorted rows of a table, read by DuckDB."""
        found = duckdb_rows(self.table(name).metadata_location, snapshot_id=snapshot_id)
        return sorted(tuple(row[c] for c in (columns or row)) for row in found)

    def rows_or_none(self, name: str) -> list[tuple[Any, ...]] | None:
        """Return the rows; None while the table does not exist."""
        try:
            return self.rows(name)
        except NoSuchTableError:
            return None

    def metadata_files(self) -> set[str]:
        return {p.name for p in (self.home / "warehouse").rglob("*") if p.parent.name == "metadata"}


class Running:
    """A supervisor in a thread; leaving the block stops it."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self.results: list[SinkResult] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.results = self.supervisor.run()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.supervisor.ask_to_stop()
        self._thread.join()

    def join(self) -> list[SinkResult]:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self.results


def until_stalled(query: Query, words: str) -> None:
    """Wait until a query is stalled, and its cause or its hint has these words."""
    for _ in range(600):
        status = query.status()
        if status.health == "stalled" and words in f"{status.cause} {status.hint}":
            return
        if query.await_termination(0.1):
            break
    raise AssertionError(f"not stalled: {query.status()}")


def eventually(claim: Callable[[], bool]) -> None:
    """Wait until the condition is true. Most of the wait is left to what is waited for, also if asking is expensive."""
    deadline = time.monotonic() + PATIENCE
    asked = time.monotonic()
    while not claim():
        now = time.monotonic()
        assert now < deadline, "it did not become so"
        time.sleep(max(0.1, 3 * (now - asked)))
        asked = time.monotonic()
