"""Edits without Iceberg: stored at once, moved to the metastore later, the same to everybody who reads."""

import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from calve.definitions import pending, store
from calve.definitions.in_metastore import MetastoreDefinitions
from calve.definitions.objects import ConcurrentEdit, Definition, read_statement
from calve.definitions.pending import PendingEdits
from calve.definitions.store import DefinitionStore, HomeDefinitions
from calve.errors import InvalidInput, TerminalError, TransientError
from calve.metastore.catalog_file import connect
from tests.support.threads import in_threads
from tests.unit.definitions.test_store import ALL, SECRET, SINK, SOURCE, VIEW


def light(home: Path) -> HomeDefinitions:
    return HomeDefinitions(home, {})


def heavy(home: Path) -> MetastoreDefinitions:
    return MetastoreDefinitions(home, {})


def stored(home: Path) -> list[Definition]:
    """What the metastore has, without pending edits."""
    found = heavy(home)
    return [one.definition for one in found._look(found._components()).stored]


def waiting(home: Path) -> int:
    return len(PendingEdits(home, {}).read().edits)


def test_pending_edits_are_read_by_everybody_and_moved_by_the_next_edit_of_the_metastore(tmp_path: Path) -> None:
    light(tmp_path).create(ALL[:3])
    light(tmp_path).create(ALL[3:])
    assert waiting(tmp_path) == 2
    assert light(tmp_path).all() == heavy(tmp_path).all() == ALL
    assert stored(tmp_path) == []
    following = heavy(tmp_path).replace(SINK)
    assert waiting(tmp_path) == 0
    assert stored(tmp_path) == light(tmp_path).all() == heavy(tmp_path).all() == [*ALL[:-1], following]


def test_settling_moves_everything_once(tmp_path: Path) -> None:
    home = light(tmp_path)
    home.settle()
    assert not (tmp_path / "metastore").exists(), "there was nothing to move"
    home.create(ALL)
    home.drop([SINK])
    home.settle()
    assert waiting(tmp_path) == 0
    before = home.revision
    home.settle()
    assert home.revision == before
    assert stored(tmp_path) == home.all() == ALL[:-1]


def test_an_edit_is_refused_as_by_the_metastore_and_leaves_nothing(tmp_path: Path) -> None:
    home = light(tmp_path)
    home.create(ALL)
    literal = replace(SECRET, uid="s-9", statement=read_statement("CREATE SECRET other AS 'hunter2'"))
    view = replace(VIEW, uid="v-9", statement=read_statement("CREATE VIEW Orders AS SELECT 1 AS x FROM orders"))
    refused: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (InvalidInput, 'source "orders" already exists', lambda: home.create([view])),
        (InvalidInput, "the text of secret", lambda: home.create([literal])),
        (ConcurrentEdit, 'another process changed sink "out"', lambda: home.drop([replace(SINK, version=2)])),
        (ConcurrentEdit, 'another process changed sink "out"', lambda: home.replace(replace(SINK, version=2))),
    ]
    for error, text, attempt in refused:
        with pytest.raises(error, match=text):
            attempt()
    assert (home.all(), waiting(tmp_path)) == (ALL, 1)
    assert not any(b"hunter2" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_death_between_the_metastore_and_the_removal_of_the_edits_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    light(tmp_path).create(ALL)
    light(tmp_path).drop([SINK])

    def die(_self: PendingEdits, _last: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(PendingEdits, "remove", die)
        with pytest.raises(KeyboardInterrupt):
            light(tmp_path).settle()
    assert waiting(tmp_path) == 2
    assert stored(tmp_path) == light(tmp_path).all() == heavy(tmp_path).all() == ALL[:-1]
    heavy(tmp_path).drop([VIEW])
    assert waiting(tmp_path) == 0
    assert stored(tmp_path) == light(tmp_path).all() == ALL[:-2], "what was dropped since must not come back"


def test_too_many_pending_edits_are_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST", 2)
    for definition in ALL:
        light(tmp_path).create([definition])
        assert waiting(tmp_path) <= 2
    assert light(tmp_path).all() == ALL
    assert len(stored(tmp_path)) == 3


@pytest.mark.parametrize("seed", range(3))
def test_random_edits_of_both_kinds_are_those_of_a_list(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    model: list[Definition] = []
    revisions = set()
    for number in range(12):
        home: DefinitionStore = heavy(tmp_path) if rng.random() < 0.3 else light(tmp_path)
        match rng.choice(["create", "create", "replace", "drop", "settle"]):
            case "replace" if model:
                at = rng.randrange(len(model))
                model[at] = home.replace(model[at])
            case "drop" if model:
                home.drop([model.pop(rng.randrange(len(model)))])
            case "settle":
                home.settle()
            case _:
                statement = read_statement(f"CREATE SOURCE s{number} FROM LOAD GENERATOR orders")
                model.append(Definition(f"u{number}", 1, statement))
                home.create([model[-1]])
        assert light(tmp_path).all() == model
        revisions.add(light(tmp_path).revision)
    assert heavy(tmp_path).all() == model
    light(tmp_path).settle()
    assert stored(tmp_path) == model
    assert len(revisions) > 3


def test_edits_of_many_processes_are_all_there(tmp_path: Path) -> None:

    def create(number: int) -> None:
        for turn in range(4):
            home = light(tmp_path) if (number + turn) % 3 else heavy(tmp_path)
            statement = read_statement(f"CREATE SECRET s{number}_{turn} FROM ENV 'X'")
            home.create([Definition(f"u{number}_{turn}", 1, statement)])
            assert f"u{number}_{turn}" in {one.uid for one in light(tmp_path).all()}

    in_threads(create, range(4))
    assert len(light(tmp_path).all()) == len(heavy(tmp_path).all()) == 16


def test_a_lock_that_stays_taken_is_an_error_and_nothing_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "_LOCK_SECONDS", 0.1)
    with (
        PendingEdits(tmp_path, {}).editing(),
        pytest.raises(TransientError, match="another process changes the definitions"),
    ):
        light(tmp_path).create([SOURCE])
    assert light(tmp_path).all() == []


@pytest.mark.parametrize(("text", "error"), [("{", "cannot be read"), ('{"format": 2}', "a newer version")])
def test_an_edit_that_cannot_be_read_is_an_error_and_not_left_out(tmp_path: Path, text: str, error: str) -> None:
    light(tmp_path).create([SOURCE])
    edits = PendingEdits(tmp_path, {})
    with closing(connect(edits._database)) as connection, connection:
        connection.execute("INSERT INTO calve_edits (steps) VALUES (?)", (text,))
    for home in (light(tmp_path), heavy(tmp_path)):
        with pytest.raises(TerminalError, match=error):
            home.all()
        with pytest.raises(TerminalError, match=error):
            home.create([SECRET])
