"""Several processes on one component."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from calve.metastore.component import Component
from calve.metastore.tables import TableUnit, open_tables
from tests.unit.metastore.sample import DELETE_AFTER_COMMIT, VERSIONS_MAX, metastore_at
from tests.unit.metastore.test_expiry import referred, there

ROOT = Path(__file__).parents[3]
KEEPING_FEW = {DELETE_AFTER_COMMIT: "true", VERSIONS_MAX: "2"}

# A writer changes two partitions at once, now and then deletes both, and knows what its last success left there.
WRITER = """
import json, sys, time
from dataclasses import replace
from pathlib import Path
from calve.metastore import filters as f
from calve.metastore.component import Component
from calve.metastore.tables import TableUnit, open_tables
from tests.unit.metastore.sample import metastore_at, segment
from tests.unit.metastore.test_races import KEEPING_FEW
folder, me, seconds = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
with metastore_at(folder, common=KEEPING_FEW) as metastore:
    tables = open_tables(metastore)
    tables.metadata()
    print("ready", flush=True)
    sys.stdin.readline()
    end, done, versions, last = time.monotonic() + seconds, 0, [], None
    while time.monotonic() < end or done < 10:
        done += 1
        mine = f.one_of("metadata_key", [f"{me}-left", f"{me}-right"])
        if done % 10 == 0:
            versions.append(tables.modify().delete(mine).execute())
            last = None
        else:
            units = [replace(segment(f"{me}-{side}"), last_modified_time=done) for side in ("left", "right")]
            both = replace(segment("contested"), last_modified_time=done, path=me)
            versions.append(tables.modify().overwrite(*units, both).execute())
            last = done
print(json.dumps({"versions": versions, "last": last}))
"""

READER = """
import json, sys
from pathlib import Path
from calve.metastore.component import Component
from calve.metastore.tables import TableUnit, open_tables
from tests.unit.metastore.sample import metastore_at
from tests.unit.metastore.test_races import KEEPING_FEW, check_whole
folder = Path(sys.argv[1])
reads = 0
with metastore_at(folder, common=KEEPING_FEW) as metastore:
    print("ready", flush=True)
    while not (folder / "stop").exists():
        check_whole(open_tables(metastore))
        reads += 1
with metastore_at(folder, common=KEEPING_FEW) as metastore:
    check_whole(open_tables(metastore))
print(json.dumps({"reads": reads}))
"""


def check_whole(tables: Component[TableUnit]) -> dict[str, int | None]:
    """No read sees a half of what one modification did."""
    units = {unit.metadata_key or "": unit.last_modified_time for unit in tables.read()}
    for key, value in units.items():
        name, _, side = key.partition("-")
        if side:
            assert units[f"{name}-{'right' if side == 'left' else 'left'}"] == value
    return units


def started(program: str, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", program, *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def hammer(folder: Path, seconds: float) -> None:
    with metastore_at(folder, common=KEEPING_FEW) as metastore:
        open_tables(metastore).metadata()
    reader = started(READER, str(folder))
    writers = {name: started(WRITER, str(folder), name, str(seconds)) for name in ("one", "two")}
    for writer in writers.values():
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    answers = {name: json.loads(writer.communicate(timeout=seconds + 120)[0]) for name, writer in writers.items()}
    (folder / "stop").touch()
    read = json.loads(reader.communicate(timeout=60)[0])
    assert [process.returncode for process in (reader, *writers.values())] == [0, 0, 0]
    assert read["reads"] > 0
    with metastore_at(folder, common=KEEPING_FEW) as metastore:
        tables = open_tables(metastore)
        expected = {
            f"{name}-{side}": answer["last"]
            for name, answer in answers.items()
            for side in ("left", "right")
            if answer["last"] is not None
        }
        found = check_whole(tables)
        assert {key: value for key, value in found.items() if key != "contested"} == expected
        counted = Counter(version for answer in answers.values() for version in answer["versions"])
        assert set(counted.values()) == {1}  # each success is a snapshot of its own
        assert tables.metadata().version == max(counted) == len(counted)
        tables.modify().overwrite(*tables.read()).execute()
        assert there(folder) == referred(tables)


@pytest.mark.long
def test_two_writers_and_a_reader_get_along(tmp_path: Path) -> None:
    hammer(tmp_path, seconds=1.5)


@pytest.mark.soak
def test_two_writers_and_a_reader_get_along_for_a_minute(tmp_path: Path) -> None:
    hammer(tmp_path, seconds=60)
