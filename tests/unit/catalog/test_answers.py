"""Commits over the wire, to catalogs of every type, whose answers are lost or wrong on the way."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from calve.catalog.connect import _catalog_class, connect_embedded, location_of, open_catalog, sqlite_uri
from calve.clock import RandomIds, SystemClock
from calve.errors import BadRow, CommitConflict, CommitUnknown, TerminalError, TransientError
from calve.iceberg.loading import load_table, load_table_or_none
from calve.iceberg.planning.compaction_groups import BY_HAND
from calve.iceberg.sink_table import MISSING_SECONDS
from calve.iceberg.small_tables.dead_letters import LetterTable
from calve.iceberg.snapshot import draft
from calve.iceberg.snapshot.expired_files import load_whole
from calve.lake import Lake, TableRef
from calve.maintain.compact import CompactionScope, Compactor
from calve.model.change import Letter, Origin
from calve.source.table import TableChanges
from calve.storage.filesystems import StoreIO
from calve.storage.state import LocalState
from tests.support import senders
from tests.support.senders import SENDERS, check, check_rows
from tests.support.servers.listening import Answer, Request
from tests.support.servers.postgres import PASSWORD, USER, Postgres
from tests.support.servers.proxy import Act, Fault, Proxy, commits, lost, refused, repeated, unparsable
from tests.support.servers.tables import GlueTables, RestTables
from tests.unit.iceberg.sample import NAME, Sample

pytestmark = pytest.mark.long

Forward = Callable[[Request], Answer]
STORE_IO = {"py-io-impl": f"{StoreIO.__module__}.{StoreIO.__name__}"}
GLUE_LOGIN = {"client.region": "r", "client.access-key-id": "k", "client.secret-access-key": "s"}


def updates_of_glue(request: Request) -> bool:
    return request.header("X-Amz-Target").endswith(".UpdateTable")


def applied_and(answer: Answer) -> Act:
    def act(request: Request, forward: Forward) -> Answer:
        forward(request)
        return answer

    return act


def error(status: int, kind: str) -> Answer:
    return Answer.of_json(status, {"error": {"message": "told to", "type": kind, "code": status}, "__type": kind})


REST: dict[str, Act] = {
    "lost": lost,
    "unparsable": unparsable,
    "repeated on the way": repeated,
    "conflict": applied_and(error(409, "CommitFailedException")),
    "server error": applied_and(error(503, "ServiceUnavailable")),
    "not implemented": applied_and(error(501, "NotImplemented")),
    "token refused": applied_and(error(401, "NotAuthorizedException")),
    "token expired": applied_and(error(419, "AuthenticationTimeoutException")),
}
GLUE: dict[str, Act] = {
    "lost": lost,
    "unparsable": unparsable,
    "repeated on the way": repeated,
    "conflict": applied_and(error(400, "ConcurrentModificationException")),
    "server error": applied_and(error(500, "InternalServiceException")),
    "throttled": applied_and(error(400, "ThrottlingException")),
}


@dataclass
class Place:
    """A catalog behind a proxy, and one that makes tables in it."""

    catalog: Catalog
    maker: Catalog
    proxy: Proxy
    on: Callable[[Request], bool]
    home: Path

    def sent(self) -> int:
        """Commits that came to the proxy."""
        return sum(self.on(request) for request in self.proxy.seen)


@pytest.fixture(autouse=True)
def early_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft, "FAN_IN", senders.MANIFESTS)


def rest_place(home: Path, ending: ExitStack) -> Place:
    Sample(home).close()  # the server knows no CREATE
    server = RestTables(home)
    ending.callback(server.stop)
    proxy = Proxy(server.uri)
    ending.callback(proxy.stop)
    client, maker = open_catalog({"type": "rest", "uri": proxy.uri}), connect_embedded(home)
    ending.callback(client.close)
    ending.callback(maker.close)
    return Place(client, maker, proxy, commits, home)


def glue_place(home: Path, ending: ExitStack) -> Place:
    server = GlueTables()
    ending.callback(server.stop)
    proxy = Proxy(server.uri)
    ending.callback(proxy.stop)
    (home / "warehouse").mkdir()
    settings = {"type": "glue", "glue.endpoint": proxy.uri, "warehouse": location_of(home / "warehouse"), **GLUE_LOGIN}
    client = open_catalog(settings)
    ending.callback(client.close)
    return Place(client, client, proxy, updates_of_glue, home)


PLACES = {"rest": (rest_place, REST), "glue": (glue_place, GLUE)}
WIRE = [
    *(pytest.param(kind, answer, "compaction") for kind, (_, answers) in PLACES.items() for answer in answers),
    *(
        pytest.param(kind, "lost", sender, marks=() if (at + number) % 2 == 0 else pytest.mark.soak)
        for at, kind in enumerate(PLACES)
        for number, sender in enumerate(SENDERS)
        if sender != "compaction"
    ),
    *(
        pytest.param(kind, "repeated on the way", sender)
        for kind in PLACES
        for sender in ("batch", "conversion", "dead_letters")
    ),
]
"""Every answer to one sender, and of every sender a lost answer, with one of the catalogs."""


@pytest.mark.parametrize(("kind", "answer", "sender"), WIRE)
def test_a_commit_is_sent_once_and_found_in_the_table_whatever_the_answer(
    tmp_path: Path, kind: str, answer: str, sender: str
) -> None:
    with ExitStack() as ending:
        build, answers = PLACES[kind]
        place = build(tmp_path, ending)
        act = SENDERS[sender](Sample(tmp_path, opened=place.catalog), place.maker)
        before = len(place.catalog.load_table(act.table).metadata.snapshots)
        place.proxy.seen.clear()
        place.proxy.faults.append(Fault(place.on, answers[answer], after=act.commits - 1))
        act.make()
        assert place.sent() == act.commits
        check(place.catalog, act, before)


@pytest.mark.parametrize("kind", PLACES)
def test_a_commit_that_another_one_overtook_leaves_nothing_behind(tmp_path: Path, kind: str) -> None:
    with ExitStack() as ending:
        place = PLACES[kind][0](tmp_path, ending)
        sample = Sample(tmp_path, opened=place.catalog)
        act = SENDERS["compaction"](sample, place.maker)

        def overtaken(request: Request, forward: Forward) -> Answer:
            sample.commit({3: "c"})
            return forward(request)

        place.proxy.faults.append(Fault(place.on, overtaken, after=act.commits - 1))
        act.make()
        assert sample.rows() == {1: "a", 2: "b", 3: "c"}
        table = sample.table
        lists = {Path(snapshot.manifest_list).name for snapshot in table.metadata.snapshots}
        folder = Path(table.location().removeprefix("file://")) / "metadata"
        assert {path.name for path in folder.glob("*snap-*.avro")} == lists, "that of the first attempt is gone"


def test_a_commit_that_became_a_request_to_load_is_not_taken_for_applied(tmp_path: Path) -> None:
    with ExitStack() as ending:
        place = rest_place(tmp_path, ending)
        sample = Sample(tmp_path, opened=place.catalog)
        act = SENDERS["compaction"](sample, place.maker)

        def redirected(request: Request, _: Forward) -> Answer:
            return Answer(302, headers={"Location": place.proxy.uri + request.path})

        place.proxy.faults.append(Fault(place.on, redirected, after=act.commits - 1))
        with pytest.raises(CommitUnknown, match=r"the response to the compaction of .* was lost"):
            act.make()
        check_rows(place.catalog, act)


@pytest.mark.parametrize("sender", ["schema_change", "hold", "expiry", "declared_table", "spec_for_deletes"])
def test_a_change_without_a_snapshot_that_became_a_request_to_load_is_not_taken_for_applied(
    tmp_path: Path, sender: str
) -> None:
    with ExitStack() as ending:
        place = rest_place(tmp_path, ending)
        act = SENDERS[sender](Sample(tmp_path, opened=place.catalog), place.maker)

        def redirected(request: Request, _: Forward) -> Answer:
            return Answer(302, headers={"Location": place.proxy.uri + request.path})

        place.proxy.faults.append(Fault(place.on, redirected, after=act.commits - 1))
        try:
            act.make()  # declared tables try again by themselves
        except CommitUnknown as error:
            assert "does not contain the change" in error.detail  # noqa: PT017 - or it is not raised
            act.make()
        check_rows(place.catalog, act)


def test_a_refused_token_is_renewed_for_the_next_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as ending:
        place = rest_place(tmp_path, ending)
        sample = Sample(tmp_path, opened=place.catalog)
        renewed: list[int] = []
        monkeypatch.setattr(place.catalog, "_refresh_token", lambda: renewed.append(1))
        place.proxy.faults.append(Fault(place.on, refused(401)))
        with pytest.raises(TransientError, match=r"the commit of batch .* failed") as raised:
            sample.commit({1: "a"})
        assert type(raised.value) is TransientError
        assert renewed
        sample.commit({1: "a"})
        assert sample.rows() == {1: "a"}


MISSING: dict[str, tuple[Answer, bool]] = {
    "the catalog's own": (error(404, "NoSuchTableException"), True),
    "a proxy's": (Answer(404, b"<html>default backend - 404</html>", {"Content-Type": "text/html"}), False),
    "an empty one": (Answer(404), False),
}
"""Responses, and whether they are believed after a while."""


@pytest.mark.parametrize("answer", MISSING)
def test_a_table_that_is_not_found_for_a_moment_is_not_taken_for_dropped(tmp_path: Path, answer: str) -> None:
    told, believed = MISSING[answer]
    with ExitStack() as ending:
        place = rest_place(tmp_path, ending)
        sample = Sample(tmp_path, opened=place.catalog)
        place.proxy.faults.append(Fault(lambda request: "/tables/" in request.path, lambda *_: told, times=3))
        for _ in range(2):
            with pytest.raises(TransientError, match="was not found"):
                sample.iceberg.load()
            sample.clock.now += round(MISSING_SECONDS * 500)
        sample.clock.now += 1
        with pytest.raises(TerminalError if believed else TransientError, match=r"no longer|was not found"):
            sample.iceberg.load()
        assert sample.iceberg.load().uuid
        place.proxy.faults.append(Fault(lambda request: "/tables/" in request.path, lambda *_: told))
        with pytest.raises(TransientError, match="was not found"):
            sample.iceberg.load()


NOT_ITS_OWN = {
    "a proxy's page": MISSING["a proxy's"][0],
    "an empty one": MISSING["an empty one"][0],
    "not implemented": error(501, "NotImplemented"),
}


@pytest.mark.parametrize("answer", NOT_ITS_OWN)
def test_whoever_loads_a_table_takes_no_response_of_a_proxy_for_that_of_the_catalog(
    tmp_path: Path, answer: str
) -> None:
    with ExitStack() as ending:
        place = rest_place(tmp_path, ending)
        sample = Sample(tmp_path, opened=place.catalog)
        sample.commit({1: "a"})
        LetterTable(place.maker, senders.LETTERS, "s", SystemClock(), RandomIds())
        letters = LetterTable(place.catalog, senders.LETTERS, "s", SystemClock(), RandomIds())
        ref = TableRef(Lake(tmp_path, {"type": "rest", "uri": place.proxy.uri}), NAME)
        source = TableChanges(ref).open(LocalState(tmp_path / "source"), SystemClock())
        compactor = Compactor(place.catalog, CompactionScope(NAME), senders.TOOLS)
        loads: list[Callable[[], object]] = [
            lambda: load_table(place.catalog, NAME),
            lambda: load_table_or_none(place.catalog, NAME),
            lambda: load_whole(place.catalog, NAME),
            lambda: source.next_end(None),
            lambda: letters.add([Letter(Origin("t", 0, 1, value=b"?"), BadRow("no"))], "q/0"),
            lambda: compactor.plan(BY_HAND),
        ]
        for load in loads:
            place.proxy.faults.append(Fault(loads_table, lambda *_: NOT_ITS_OWN[answer]))
            with pytest.raises(TransientError, match=r"loading table .* failed"):
                load()
            load()


def test_a_table_does_not_exist_if_the_catalog_itself_says_so(tmp_path: Path) -> None:
    with ExitStack() as ending:
        place = rest_place(tmp_path, ending)
        told = MISSING["the catalog's own"][0]
        place.proxy.faults.append(Fault(loads_table, lambda *_: told))
        assert load_table_or_none(place.catalog, NAME) is None
        assert load_table_or_none(place.catalog, NAME) is not None


def loads_table(request: Request) -> bool:
    return request.method == "GET" and "/tables/" in request.path


def test_a_rest_catalog_owns_old_metadata_files_whoever_commits(tmp_path: Path) -> None:
    removing = {"write.metadata.previous-versions-max": "1", "write.metadata.delete-after-commit.enabled": "true"}
    for sender in ("batch", "compaction", "conversion", "dead_letters", "declared_table", "schema_change"):
        with ExitStack() as ending:
            home = tmp_path / sender
            place = rest_place(home, ending)
            sample = Sample(home, opened=place.catalog)
            act = SENDERS[sender](sample, place.maker)
            place.maker.load_table(act.table).transaction().set_properties(removing).commit_transaction()
            folder = Path(sample.catalog.load_table(act.table).location().removeprefix("file://")) / "metadata"
            before = set(folder.glob("*.metadata.json"))
            act.make()
            assert before <= set(folder.glob("*.metadata.json")), sender


# ---- SQL databases


def lose_the_answer(monkeypatch: pytest.MonkeyPatch, catalog: SqlCatalog, failure: Exception, nth: int) -> None:
    """The n-th swap from now is committed by the database, and nobody learns of it."""
    real: Callable[[Any], None] = catalog.engine.dialect.do_commit
    left = [nth]

    def do_commit(connection: Any) -> None:
        real(connection)
        left[0] -= 1
        if not left[0]:
            raise failure

    monkeypatch.setattr(catalog.engine.dialect, "do_commit", do_commit)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    server.await_answer()
    yield server
    server.stop()


def sql_catalog(kind: str, home: Path, request: pytest.FixtureRequest) -> SqlCatalog:
    settings = {"warehouse": location_of(home / "warehouse"), **STORE_IO}
    if kind == "embedded":
        found = connect_embedded(home)
    elif kind == "sqlite":  # as any other database: not the embedded catalog
        found = _catalog_class("sql")("calve", uri=sqlite_uri(home / "catalog.db"), **settings)
    else:
        server: Postgres = request.getfixturevalue("postgres")
        found = open_catalog({"type": "sql", "uri": server.uri.replace("//", f"//{USER}:{PASSWORD}@"), **settings})
        for name in (NAME.identifier, senders.LETTERS.identifier):
            if found.table_exists(name):
                found.drop_table(name)
    assert isinstance(found, SqlCatalog)
    return found


@pytest.mark.parametrize("sender", ["batch", "compaction", "conversion", "dead_letters"])
@pytest.mark.parametrize("kind", ["embedded", "sqlite", "postgresql"])
def test_a_transaction_whose_answer_was_lost_is_found_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, kind: str, sender: str
) -> None:
    catalog = sql_catalog(kind, tmp_path, request)
    act = SENDERS[sender](Sample(tmp_path, opened=catalog), catalog)
    before = len(catalog.load_table(act.table).metadata.snapshots)
    error_class: type[Exception] = catalog.engine.dialect.loaded_dbapi.OperationalError
    lose_the_answer(monkeypatch, catalog, error_class("the connection was closed"), act.commits)
    act.make()
    check(catalog, act, before)
    catalog.close()


@pytest.mark.parametrize("kind", ["embedded", "sqlite", "postgresql"])
def test_a_swap_that_another_process_won_was_not_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, kind: str
) -> None:
    """Between the check and the swap: the database itself refuses."""
    catalog = sql_catalog(kind, tmp_path, request)
    sample = Sample(tmp_path, opened=catalog)
    sample.commit({1: "a"})
    state, proposal = sample.iceberg.load(), sample.proposal({2: "b"})
    name = "_stage" if kind == "embedded" else "_write_metadata"
    bound: Callable[..., Any] = getattr(catalog, name)

    def overtaken(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(catalog, name, bound)
        sample.commit({3: "c"})
        return bound(*arguments, **named)

    monkeypatch.setattr(catalog, name, overtaken)
    with pytest.raises(CommitConflict):
        sample.iceberg.commit(state, proposal)
    assert sample.rows() == {1: "a", 3: "c"}
    sample.iceberg.commit(sample.iceberg.load(), proposal)
    assert sample.rows() == {1: "a", 2: "b", 3: "c"}
    catalog.close()
