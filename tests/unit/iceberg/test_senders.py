"""Everyone who commits, with a catalog whose answers are lost, cannot be parsed, or are wrong."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import CommitTableResponse

from calve.catalog.connect import connect_embedded
from calve.errors import CommitConflict, CommitUnknown
from calve.iceberg.snapshot import draft
from calve.metastore.modify import Modify, execute_together
from calve.metastore.tables import open_tables
from calve.metastore.views import ViewType, ViewUnit, open_views
from tests.support import senders
from tests.support.senders import SENDERS, Act, check, check_rows
from tests.unit.iceberg.sample import Sample
from tests.unit.metastore.sample import GENERAL, SEGMENT, metastore_at


def lose() -> None:
    raise ConnectionResetError("the connection is gone")


def garble() -> None:
    CommitTableResponse.model_validate_json("<html>502 behind a 200</html>")


def refuse() -> None:
    raise CommitFailedException("Cannot commit because Glue detected concurrent update")


def not_found() -> None:
    raise NoSuchTableError("a replica does not know it yet")


ANSWERS: dict[str, Callable[[], None]] = {
    "lost": lose,
    "unparsable": garble,
    "conflict": refuse,
    "not found": not_found,
}


@pytest.fixture(autouse=True)
def early_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft, "FAN_IN", senders.MANIFESTS)


@pytest.fixture
def sample(tmp_path: Path) -> Iterator[Sample]:
    made = Sample(tmp_path)
    yield made
    made.close()


def meddle(
    monkeypatch: pytest.MonkeyPatch, catalog: Catalog, answer: Callable[[], None], *, applied: bool, nth: int = 1
) -> None:
    """The n-th commit is applied or not, and then answered in this way."""
    left = [nth]
    for name in ("commit_table", "commit_tables"):
        real: Callable[..., Any] = getattr(catalog, name)

        def call(*arguments: Any, real: Callable[..., Any] = real) -> Any:
            left[0] -= 1
            if left[0]:
                return real(*arguments)
            if applied:
                real(*arguments)
            answer()
            return None

        monkeypatch.setattr(catalog, name, call)


def snapshots_of(catalog: Catalog, act: Act) -> int:
    return len(catalog.load_table(act.table).metadata.snapshots)


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("sender", SENDERS)
def test_a_change_that_was_applied_is_made_once_and_keeps_its_files_whatever_the_answer(
    sample: Sample, monkeypatch: pytest.MonkeyPatch, sender: str, answer: str
) -> None:
    act = SENDERS[sender](sample, sample.catalog)
    before = snapshots_of(sample.catalog, act)
    meddle(monkeypatch, sample.catalog, ANSWERS[answer], applied=True, nth=act.commits)
    act.make()
    check(sample.catalog, act, before)


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("sender", SENDERS)
def test_a_change_that_never_arrived_is_made_later_and_takes_no_file_with_it(
    sample: Sample, monkeypatch: pytest.MonkeyPatch, sender: str, answer: str
) -> None:
    act = SENDERS[sender](sample, sample.catalog)
    meddle(monkeypatch, sample.catalog, ANSWERS[answer], applied=False, nth=act.commits)
    try:
        act.make()
    except CommitUnknown:
        act.make()
    check_rows(sample.catalog, act)


@pytest.mark.parametrize("answer", ["lost", "conflict"])
@pytest.mark.parametrize("sender", SENDERS)
def test_a_change_is_unknown_while_the_table_cannot_be_loaded_and_nothing_is_removed(
    sample: Sample, monkeypatch: pytest.MonkeyPatch, sender: str, answer: str
) -> None:
    act = SENDERS[sender](sample, sample.catalog)
    real = sample.catalog.load_table

    def answer_and_be_gone() -> None:
        def load_table(_: object) -> None:
            monkeypatch.setattr(sample.catalog, "load_table", real)
            raise TimeoutError("nobody answers")

        monkeypatch.setattr(sample.catalog, "load_table", load_table)
        ANSWERS[answer]()

    meddle(monkeypatch, sample.catalog, answer_and_be_gone, applied=True, nth=act.commits)
    try:
        act.make()
    except CommitUnknown:
        check_rows(sample.catalog, act)
    else:
        assert sender in {"dead_letters", "declared_table"}, "the table tells them what is left to do"
        check_rows(sample.catalog, act)


@pytest.mark.parametrize("sender", SENDERS)
def test_a_change_that_another_one_overtook_is_made_on_top_of_it(
    sample: Sample, monkeypatch: pytest.MonkeyPatch, sender: str
) -> None:
    act = SENDERS[sender](sample, sample.catalog)
    other = connect_embedded(sample.home)
    real: Callable[..., Any] = sample.catalog.commit_table
    calls = []

    def commit_table(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == act.commits:
            with other.load_table(act.table).update_schema() as change:
                change.update_column(arguments[0].schema().fields[-1].name, doc="by another")
        return real(*arguments)

    monkeypatch.setattr(sample.catalog, "commit_table", commit_table)
    try:
        act.make()
    except CommitConflict:
        act.make()
    check_rows(sample.catalog, act)
    assert len(calls) >= act.commits
    other.close()


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_modification_that_was_applied_is_made_once_whatever_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    with metastore_at(tmp_path) as metastore:
        tables = open_tables(metastore)
        tables.modify().overwrite(GENERAL).execute()
        act = Act(tables.modify().overwrite(GENERAL, SEGMENT).execute, rows=2, table=tables.declaration.identifier)
        meddle(monkeypatch, tables.catalog, ANSWERS[answer], applied=True)
        assert act.make() == 2
        check(tables.catalog, act, 1)


@pytest.mark.parametrize("answer", ANSWERS)
def test_modifications_of_two_components_are_made_once_whatever_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    with metastore_at(tmp_path) as metastore:
        tables, views = open_tables(metastore), open_views(metastore)
        view = ViewUnit(storage_plugin="a", workspace="b", view_name="c", metadata_type=ViewType.VIEW, sql="SELECT 1")
        tables.modify().overwrite(GENERAL).execute()
        views.see()
        both: list[Modify[Any]] = [tables.modify().overwrite(GENERAL, SEGMENT), views.modify().overwrite(view)]
        meddle(monkeypatch, tables.catalog, ANSWERS[answer], applied=True)
        assert execute_together(both) == [2, 1]
        check(tables.catalog, Act(lambda: None, rows=2, table=tables.declaration.identifier), 1)
        check(views.catalog, Act(lambda: None, rows=1, table=views.declaration.identifier), 0)


def test_a_modification_that_arrives_late_is_found_by_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two attempts have the same data files: one on top of the other would remove what it adds."""
    with metastore_at(tmp_path) as metastore:
        tables = open_tables(metastore)
        tables.modify().overwrite(GENERAL).execute()
        real: Callable[..., Any] = tables.catalog.commit_table
        see = tables.see
        waiting: list[tuple[Any, ...]] = []

        def commit_table(*arguments: Any) -> Any:
            if waiting:
                return real(*arguments)
            waiting.append(arguments)
            raise TimeoutError("nobody answers")

        def see_after_its_arrival() -> Any:
            if waiting:
                real(*waiting[0])
                monkeypatch.setattr(tables, "see", see)
            return see()

        monkeypatch.setattr(tables.catalog, "commit_table", commit_table)
        monkeypatch.setattr(tables, "see", see_after_its_arrival)
        act = Act(tables.modify().overwrite(GENERAL, SEGMENT).execute, rows=2, table=tables.declaration.identifier)
        assert act.make() == 2
        check(tables.catalog, act, 1)


def test_a_modification_whose_answers_are_all_lost_is_unknown_and_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calve.metastore.modify.ATTEMPTS", 3)
    with metastore_at(tmp_path) as metastore:
        tables = open_tables(metastore)
        tables.modify().overwrite(GENERAL).execute()
        before = set(tmp_path.rglob("*.parquet"))
        monkeypatch.setattr(tables.catalog, "commit_table", lambda *_: refuse())
        with pytest.raises(CommitUnknown, match="was rejected, and the table does not show why"):
            tables.modify().overwrite(SEGMENT).execute()
        assert len(set(tmp_path.rglob("*.parquet")) - before) == 1
