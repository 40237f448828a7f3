"""The workload of the benchmarks: a table of orders, and batches of 100,000 changes of it, or of another number.

90 % of the changes update a random row, 5 % insert, 5 % delete. Made once into a folder that is not under version
control.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

STATUSES = np.array(["NEW", "PAID", "PACKED", "SHIPPED", "DELIVERED", "RETURNED"])
CHANGES = 100_000
COLUMNS = ("id", "customer", "amount", "status", "updated")
_FILES_FROM = 1_760_000_000
"""The time of the first file of a stream, in seconds."""
DDL = "id BIGINT, customer INT, amount DOUBLE, status STRING, updated TIMESTAMP, op STRING, seq BIGINT"


@dataclass(frozen=True)
class Workload:
    """Where the files of one size are, and what must come out."""

    folder: Path
    """Named after the numbers."""
    rows: int
    batches: int
    changes: int = CHANGES
    """Of a batch."""
    span: int = 0
    """The number of neighboring keys that updates and deletes choose from; 0 for all."""

    @classmethod
    def at(cls, folder: Path) -> Self:
        """The one that was made in a folder."""
        return cls(folder, *(int(number) for number in folder.name.split("x")))

    @property
    def initial(self) -> str:
        """The initial load."""
        return str(self.folder / "init")

    def batch(self, number: int) -> str:
        """A batch of changes, from 0."""
        return str(self.folder / f"b{number:03d}")

    def files(self) -> list[Path]:
        """The initial load and each batch as one file; their times are in order. Made when they are not there."""
        folder = self.folder / "files"
        found = [folder / f"{number:05d}.parquet" for number in range(self.batches + 1)]
        if not (folder / "done").exists():
            folder.mkdir(exist_ok=True)
            for number, path in enumerate(found):
                pq.write_table(
                    pq.read_table(self.batch(number - 1) if number else self.initial), path, compression="zstd"
                )
                os.utime(path, (_FILES_FROM + number,) * 2)
            (folder / "done").touch()
        return found

    def last_changes(self) -> str:
        """The last change of every key, as a relation of DuckDB's: all columns, and `op`."""
        columns = ", ".join(column for column in COLUMNS if column != "id")
        changes = f"read_parquet(['{self.initial}/*.parquet', '{self.folder}/b*/*.parquet'])"
        return f"(SELECT id, unnest(arg_max(struct_pack({columns}, op), seq)) FROM {changes} GROUP BY id)"

    def reference(self, batches: int) -> tuple[int, float]:
        """Rows, and the sum of their amounts, after so many batches."""
        state = np.load(self.folder / f"ref{batches:03d}.npy")
        return int(state[0]), float(state[1])


def make_workload(root: Path, rows: int, batches: int, changes: int = CHANGES, span: int = 0) -> Workload:
    """The workload, made when it is not there."""
    folder = root / (f"{rows}x{batches}" if changes == CHANGES else f"{rows}x{batches}x{changes}")
    if span:
        folder = root / f"{rows}x{batches}x{changes}x{span}"
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _generate(folder, rows, batches, changes, span)
        (folder / "done").touch()
    return Workload(folder, rows, batches, changes, span)


def _columns(rng: np.random.Generator, count: int) -> dict[str, pa.Array]:
    return {
        "customer": pa.array(rng.integers(0, 200_000, count).astype(np.int32)),
        "amount": pa.array(rng.integers(0, 400_000, count) / 4.0),
        "status": pa.array(STATUSES[rng.integers(0, 6, count)]),
        "updated": pa.array(1_760_000_000_000_000 + rng.integers(0, 10**13, count), pa.timestamp("us", tz="UTC")),
    }


def _write(folder: Path, ids: np.ndarray, columns: dict[str, pa.Array], op: np.ndarray, seq: np.ndarray) -> None:
    folder.mkdir(exist_ok=True)
    table = pa.table({"id": pa.array(ids, pa.int64()), **columns, "op": pa.array(op), "seq": pa.array(seq, pa.int64())})
    half = -(-table.num_rows // 8)
    for part in range(8):
        pq.write_table(table.slice(part * half, half), folder / f"p{part}.parquet", compression="zstd")


def _generate(folder: Path, rows: int, batches: int, changes: int, span: int) -> None:
    rng = np.random.default_rng(7)
    limit = rows + changes * batches
    live, amount = np.zeros(limit, bool), np.zeros(limit)
    ids = np.arange(rows)
    columns = _columns(rng, rows)
    live[:rows], amount[:rows] = True, columns["amount"].to_numpy()
    _write(folder / "init", ids, columns, np.full(rows, "i"), ids)
    np.save(folder / "ref000.npy", np.array([live.sum(), amount[live].sum()]))
    fresh = rows
    for number in range(batches):
        known = np.flatnonzero(live[:fresh])
        if span:
            known = known[len(known) // 2 :][:span]
        inserts = changes // 20
        ids = np.concatenate(
            [rng.choice(known, changes - 2 * inserts), np.arange(fresh, fresh + inserts), rng.choice(known, inserts)]
        )
        op = np.repeat(np.array(["u", "i", "d"]), [changes - 2 * inserts, inserts, inserts])
        fresh += inserts
        order = rng.permutation(changes)
        ids, op, columns = ids[order], op[order], _columns(rng, changes)
        seq = np.arange(changes) + limit + number * changes
        values = columns["amount"].to_numpy()
        last = {int(key): position for position, key in enumerate(ids)}  # the last change of a key wins
        keys, places = np.fromiter(last.keys(), int), np.fromiter(last.values(), int)
        live[keys] = op[places] != "d"
        amount[keys] = values[places]
        _write(folder / f"b{number:03d}", ids, columns, op, seq)
        np.save(folder / f"ref{number + 1:03d}.npy", np.array([live.sum(), amount[live].sum()]))
