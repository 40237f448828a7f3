"""The workload of the benchmarks: a table of orders, and batches of 100,000 changes of it, or of another number.

90 % of the changes update a random row, 5 % insert, 5 % delete. `recent`: nine of ten updates and deletes are of the
newest twentieth of the keys. `inserts`: 90 % of the changes insert, 5 % update, 5 % delete. Tables have five columns,
or `width` columns. Made once into a folder that is not under version control.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, cast, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

STATUSES = np.array(["NEW", "PAID", "PACKED", "SHIPPED", "DELIVERED", "RETURNED"])
CHANGES = 100_000
COLUMNS = ("id", "customer", "amount", "status", "updated")
_FILES_FROM = 1_760_000_000
"""The time of the first file of a stream, in seconds."""
Kind = Literal["uniform", "recent", "inserts"]
"""Which keys are changed."""
KINDS: tuple[Kind, ...] = get_args(Kind)
_RECENT = 20
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
    kind: Kind = "uniform"
    width: int = len(COLUMNS)
    """The number of columns."""

    @classmethod
    def at(cls, folder: Path) -> Self:
        """The one that was made in a folder."""
        numbers, *kind = folder.name.split("-")
        rows, batches, *more = (int(number) for number in numbers.split("x"))
        changes, span = [*more, CHANGES, 0][:2] if len(more) != 1 else [more[0], 0]
        if not kind:
            return cls(folder, rows, batches, changes, span)
        return cls(folder, rows, batches, changes, span, cast("Kind", kind[0]), int(kind[1]))

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the table."""
        return (*COLUMNS, *(f"c{number}" for number in range(len(COLUMNS), self.width)))

    @property
    def ddl(self) -> str:
        """Of the records: columns, `op` and `seq`."""
        return f"{self.table_ddl}, op STRING, seq BIGINT"

    @property
    def table_ddl(self) -> str:
        """Of the table."""
        more = "".join(f", {name} {'DOUBLE' if int(name[1:]) % 2 else 'INT'}" for name in self.columns[len(COLUMNS) :])
        return f"{DDL.partition(', op ')[0]}{more}"

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
        columns = ", ".join(column for column in self.columns if column != "id")
        changes = f"read_parquet(['{self.initial}/*.parquet', '{self.folder}/b*/*.parquet'])"
        return f"(SELECT id, unnest(arg_max(struct_pack({columns}, op), seq)) FROM {changes} GROUP BY id)"

    def reference(self, batches: int) -> tuple[int, float]:
        """Rows, and the sum of their amounts, after so many batches."""
        state = np.load(self.folder / f"ref{batches:03d}.npy")
        return int(state[0]), float(state[1])


@dataclass(frozen=True)
class Shape:
    """What is special about the rows and changes of a workload."""

    kind: Kind = "uniform"
    width: int = len(COLUMNS)


PLAIN = Shape()


def make_workload(
    root: Path, rows: int, batches: int, changes: int = CHANGES, span: int = 0, shape: Shape = PLAIN
) -> Workload:
    """The workload, made when it is not there."""
    folder = root / (f"{rows}x{batches}" if changes == CHANGES else f"{rows}x{batches}x{changes}")
    if span:
        folder = root / f"{rows}x{batches}x{changes}x{span}"
    if shape != PLAIN:
        folder = root / f"{rows}x{batches}x{changes}x{span}-{shape.kind}-{shape.width}"
    made = Workload(folder, rows, batches, changes, span, shape.kind, shape.width)
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _generate(made)
        (folder / "done").touch()
    return made


def _columns(rng: np.random.Generator, count: int, more: tuple[str, ...]) -> dict[str, pa.Array]:
    found = {
        "customer": pa.array(rng.integers(0, 200_000, count).astype(np.int32)),
        "amount": pa.array(rng.integers(0, 400_000, count) / 4.0),
        "status": pa.array(STATUSES[rng.integers(0, 6, count)]),
        "updated": pa.array(1_760_000_000_000_000 + rng.integers(0, 10**13, count), pa.timestamp("us", tz="UTC")),
    }
    for name in more:
        values = rng.integers(0, 1_000_000, count)
        found[name] = pa.array(values / 8.0) if int(name[1:]) % 2 else pa.array(values.astype(np.int32))
    return found


def _shares(workload: Workload) -> tuple[int, int, int]:
    """Updates, inserts and deletes of a batch."""
    few = workload.changes // 20
    many = workload.changes - 2 * few
    return (few, many, few) if workload.kind == "inserts" else (many, few, few)


def _chosen(rng: np.random.Generator, known: np.ndarray, count: int, kind: Kind) -> np.ndarray:
    """Keys that are changed."""
    if kind != "recent":
        return rng.choice(known, count)
    newest = rng.choice(known[-max(1, len(known) // _RECENT) :], count - count // 10)
    return np.concatenate([newest, rng.choice(known, count // 10)])


def _write(folder: Path, ids: np.ndarray, columns: dict[str, pa.Array], op: np.ndarray, seq: np.ndarray) -> None:
    folder.mkdir(exist_ok=True)
    table = pa.table({"id": pa.array(ids, pa.int64()), **columns, "op": pa.array(op), "seq": pa.array(seq, pa.int64())})
    half = -(-table.num_rows // 8)
    for part in range(8):
        pq.write_table(table.slice(part * half, half), folder / f"p{part}.parquet", compression="zstd")


def _generate(workload: Workload) -> None:
    folder, rows, batches, changes = workload.folder, workload.rows, workload.batches, workload.changes
    more = workload.columns[len(COLUMNS) :]
    rng = np.random.default_rng(7)
    limit = rows + changes * batches
    live, amount = np.zeros(limit, bool), np.zeros(limit)
    ids = np.arange(rows)
    columns = _columns(rng, rows, more)
    live[:rows], amount[:rows] = True, columns["amount"].to_numpy()
    _write(folder / "init", ids, columns, np.full(rows, "i"), ids)
    np.save(folder / "ref000.npy", np.array([live.sum(), amount[live].sum()]))
    fresh = rows
    for number in range(batches):
        known = np.flatnonzero(live[:fresh])
        if workload.span:
            known = known[len(known) // 2 :][: workload.span]
        updates, inserts, deletes = _shares(workload)
        updated = _chosen(rng, known, updates, workload.kind)
        deleted = _chosen(rng, known, deletes, workload.kind)
        ids = np.concatenate([updated, np.arange(fresh, fresh + inserts), deleted])
        op = np.repeat(np.array(["u", "i", "d"]), [updates, inserts, deletes])
        fresh += inserts
        order = rng.permutation(changes)
        ids, op, columns = ids[order], op[order], _columns(rng, changes, more)
        seq = np.arange(changes) + limit + number * changes
        values = columns["amount"].to_numpy()
        last = {int(key): position for position, key in enumerate(ids)}  # the last change of a key wins
        keys, places = np.fromiter(last.keys(), int), np.fromiter(last.values(), int)
        live[keys] = op[places] != "d"
        amount[keys] = values[places]
        _write(folder / f"b{number:03d}", ids, columns, op, seq)
        np.save(folder / f"ref{number + 1:03d}.npy", np.array([live.sum(), amount[live].sum()]))
