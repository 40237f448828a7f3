"""A start that fails half way leaves a status that says so, and a replay that is refused leaves it as it was."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from calve.clock import SystemClock
from calve.commit.committer import Signals
from calve.errors import InvalidInput, TransientError
from calve.model.health import Health
from calve.model.letters import LetterChoice
from calve.model.spec import NoEnvelope, SinkSpec, TableName
from calve.pipeline import start
from calve.pipeline.monitor import report_start
from calve.pipeline.start import Start
from calve.source.files.definition import files
from calve.storage.state import LocalState
from calve.watch import reporter
from calve.watch.status_files import read_status, status_file

TABLE = TableName(("n",), "t")
SPEC = SinkSpec("s", "sink", TABLE, ("k",), NoEnvelope(), dead_letters=TABLE.dead_letters)


def begun(home: Path, monkeypatch: pytest.MonkeyPatch, replay: LetterChoice | None = None) -> Start:
    """A start that has opened its source and its table, without Spark."""
    made = object.__new__(Start)
    made._home, made._spec, made._replay = home, SPEC, replay
    made._clock, made._signals = SystemClock(), Signals()
    for name in ("check_executors", "check_adoption"):
        monkeypatch.setattr(start, name, lambda _: None)
    monkeypatch.setattr(made, "_spark", None, raising=False)
    monkeypatch.setattr(made, "_sink", None, raising=False)
    opened = (None, SimpleNamespace(spec=SPEC, intake=None), None)
    monkeypatch.setattr(made, "_open", lambda: opened)
    return made


def test_a_catalog_that_fails_half_way_leaves_no_sink_that_seems_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = begun(tmp_path, monkeypatch)

    def fails(_monitor: object) -> NoReturn:
        raise TransientError("the catalog does not answer")

    monkeypatch.setattr(made, "_letters", fails)
    with pytest.raises(TransientError, match="the catalog does not answer"):
        made.query()
    status = read_status(status_file(tmp_path, "s"))
    assert status is not None
    assert (status.health, status.cause) == (Health.STALLED, "the catalog does not answer")
    assert status_file(tmp_path, "s") not in reporter._heart()._reporters, "nothing runs that could show a sign of life"


@pytest.mark.parametrize(("master", "form"), [("local[1]", "json"), ("spark://a:7077", "json"), ("yarn", "parquet")])
def test_a_backlog_of_large_files_is_read_in_checkpoints_that_tasks_handle_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str, form: str
) -> None:
    made = begun(tmp_path, monkeypatch)
    context = SimpleNamespace(master=master, defaultParallelism=1)
    monkeypatch.setattr(made, "_spark", SimpleNamespace(sparkContext=context))
    folder, size = tmp_path / "in", (900 << 20) // (4 if form == "parquet" else 1)
    folder.mkdir()
    for number in range(5):
        with (folder / f"{number}.{form}").open("wb") as out:
            out.truncate(size)  # takes no room
    source = files(folder, format=form, schema="id BIGINT").open(LocalState(tmp_path / "state"), SystemClock())
    made._feed(source)
    first = source.next_end(None)
    assert source.unread == 3, "two files have less than 2 GB"
    source.next_end(first)
    assert source.unread == 1


@pytest.mark.parametrize("letters", [True, False])
def test_a_replay_that_is_refused_does_not_touch_the_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, letters: bool
) -> None:
    report_start(tmp_path, "s", Health.STOPPED, "stop() was called")
    before = status_file(tmp_path, "s").read_text()
    made = begun(tmp_path, monkeypatch, LetterChoice())
    if not letters:
        made._spec = replace(SPEC, dead_letters=None)
    with pytest.raises(InvalidInput, match=r"dead letters|keeps no"):
        made.query()
    assert status_file(tmp_path, "s").read_text() == before
