import re
from pathlib import Path

import pytest

from calve.storage.sizes import _OF_HOME, home_sizes, state_sizes
from calve.storage.state import LocalState


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_the_state_of_a_sink_is_measured_by_kind(tmp_path: Path, scheme: str) -> None:
    store = LocalState(tmp_path)
    for name, size in {
        "sink/table.json": 1,
        "sink/rec/1-a/00000001": 10,
        "sink/runs/1-a": 2,
        "sink/stage/1-a/part": 100,
        "sink/index/part": 1000,
        "sink/source-2/ledger/1": 20,
        "sink/view/v/piece": 30,
        "sink/letters/request": 3,
        "other/rec/1-a/adopt": 7,
        "removal/table/entry": 5,
    }.items():
        store.put(name, b"x" * size)
    assert state_sizes(f"{scheme}{tmp_path}", "sink") == {
        "records": 13,
        "stages": 100,
        "key index": 1000,
        "read positions": 20,
        "totals of views": 30,
        "replays of dead letters": 3,
        "removal journal": 5,
    }
    assert state_sizes(f"{scheme}{tmp_path}", "unknown") == {"removal journal": 5}


def test_everything_in_a_home_is_measured_but_tables_and_state(tmp_path: Path) -> None:
    assert home_sizes(tmp_path) == {}
    measured = ("spark/s/offsets/0", "logs/spark.log", "logs/spark.log.1", "orphans/t.arrow", "history")
    for name in (*measured, "warehouse/t/data/a", "state/s/rec/1", "of the user/large"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"12345")
    sizes = {"Spark checkpoints": 5, "logs": 10, "notes on orphan files": 5, "other files": 5}
    assert home_sizes(tmp_path) == sizes


def test_every_folder_that_calve_makes_in_a_home_is_measured() -> None:
    source = Path(__file__).parents[3] / "src" / "calve"
    texts = [path.read_text() for path in source.rglob("*.py")]
    named = {name for text in texts for name in re.findall(r'[_.(\s]home\)? / "([^"]+)"', text)}
    assert {"spark", "logs", "orphans", "status"} <= named
    files = {name for name in named if "." in name or name == "history"}
    of_java = {"bin", "release"}
    assert named - files - of_java == _OF_HOME.keys() - {"metastore"} | {"warehouse", "state"}
