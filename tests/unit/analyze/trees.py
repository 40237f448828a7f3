"""Folders of Parquet files, changed by hand, and what the metastore has of them."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from calve.analyze.folder_subject import FolderSubject
from calve.analyze.refresh import AnalyzeRequest, Refreshed, refresh
from calve.metastore.component import Component
from calve.metastore.tables import TableUnit, open_tables
from tests.unit.metastore.sample import metastore_at

Tables = Component[TableUnit]

_stamps = iter(range(1_000_000_000_000_000_000, 2_000_000_000_000_000_000, 1_000_000_000))


def no_spark() -> NoReturn:
    raise AssertionError("Spark is not needed here")


def put(path: Path, numbers: Sequence[int | None], *, row_group_size: int = 50, **more: Any) -> Path:
    """A file with these numbers, and a time stamp that no other has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {"id": pa.array(numbers, pa.int64()), **{name: [value] * len(numbers) for name, value in more.items()}}
    pq.write_table(pa.table(columns), path, row_group_size=row_group_size)
    stamp = next(_stamps)
    os.utime(path, ns=(stamp, stamp))
    return path


def put_tree(root: Path) -> None:
    """Three folders of four folders of two files; every file has a hundred numbers of its own."""
    number = 0
    for top in ("a", "b", "c"):
        for inner in range(4):
            for name in ("0", "1"):
                put(root / top / str(inner) / f"{name}.parquet", range(number, number + 100))
                number += 100


def spoil(path: Path) -> None:
    """Other bytes of the same length and time: whoever opens the file fails."""
    before = path.stat()
    path.write_bytes(b"x" * before.st_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def folder(root: Path) -> FolderSubject:
    return FolderSubject.of(str(root), no_spark)


def refreshed(tables: Tables, root: Path, request: AnalyzeRequest | None = None) -> Refreshed:
    return refresh(tables, folder(root), request or AnalyzeRequest())


def fresh_units(root: Path, scratch: Path, request: AnalyzeRequest | None = None) -> list[TableUnit]:
    """What a metastore without any history has of a folder."""
    with metastore_at(scratch) as metastore:
        tables = open_tables(metastore)
        refreshed(tables, root, request)
        return in_order(tables.read())


def in_order(units: Sequence[TableUnit]) -> list[TableUnit]:
    return sorted(units, key=lambda u: (u.metadata_key or "", u.metadata_type or "", u.metadata_identifier or ""))
