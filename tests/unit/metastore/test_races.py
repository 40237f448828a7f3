"""Several processes on one component."""

import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from calve.metastore import filters as f
from calve.metastore.component import Component
from calve.metastore.tables import TableUnit, open_tables
from tests.support.warm import together
from tests.unit.metastore.sample import DELETE_AFTER_COMMIT, VERSIONS_MAX, metastore_at, segment
from tests.unit.metastore.test_expiry import referred, there

KEEPING_FEW = {DELETE_AFTER_COMMIT: "true", VERSIONS_MAX: "2"}
WRITERS = ("one", "two")


def write(folder: Path, me: str, seconds: float) -> dict[str, Any]:
    """Change two partitions at once, now and then delete both; tells what the last success left there."""
    with metastore_at(folder, common=KEEPING_FEW) as metastore:
        tables = open_tables(metastore)
        end, done = time.monotonic() + seconds, 0
        versions: list[int] = []
        last: int | None = None
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
    (folder / f"{me} is done").touch()
    return {"versions": versions, "last": last}


def read(folder: Path) -> dict[str, Any]:
    """Read until the writers are done, and once more."""
    reads = 0
    with metastore_at(folder, common=KEEPING_FEW) as metastore:
        while not all((folder / f"{name} is done").exists() for name in WRITERS):
            check_whole(open_tables(metastore))
            reads += 1
    with metastore_at(folder, common=KEEPING_FEW) as metastore:
        check_whole(open_tables(metastore))
    return {"reads": reads}


def check_whole(tables: Component[TableUnit]) -> dict[str, int | None]:
    """No read sees a half of what one modification did."""
    units = {unit.metadata_key or "": unit.last_modified_time for unit in tables.read()}
    for key, value in units.items():
        name, _, side = key.partition("-")
        if side:
            assert units[f"{name}-{'right' if side == 'left' else 'left'}"] == value
    return units


def hammer(folder: Path, seconds: float) -> None:
    with metastore_at(folder, common=KEEPING_FEW) as metastore:
        open_tables(metastore).metadata()
    *written, seen = together(*(partial(write, folder, name, seconds) for name in WRITERS), partial(read, folder))
    answers = dict(zip(WRITERS, written, strict=True))
    assert seen["reads"] > 0
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
