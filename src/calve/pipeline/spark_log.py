"""Spark's streaming checkpoint directory and progress reports; no other module knows their formats.

    metadata             {"id": "<query id>"}
    offsets/<batch id>   "v1", a JSON object with batchTimestampMs, then one line of offsets per source; before a batch
    commits/<batch id>   "v1", a JSON object; after a batch

The directory is disposable: the table and the state location determine where to continue, and a new directory can start
there if the source's offsets describe its position completely (Kafka's do; those of Spark's file source are indexes
into a list that is stored in the directory itself).

The reports show whether a query waits for data, and how much of the source it has not read. Spark 3.5 reports offsets
as parsed JSON, Spark 4 as text. Some sources do not report their latest offset.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calve.errors import TerminalError, TransientError
from calve.model.checkpoint import CheckpointIdentity, Offsets, canonical_offsets
from calve.model.health import SourcePart, SourcePosition
from calve.model.numbers import whole_number
from calve.storage import durable
from calve.storage.hints import hint_for


class DamagedLog(TerminalError):
    """The directory exists and cannot be read."""


@dataclass(frozen=True)
class LoggedBatch:
    """A micro-batch as Spark planned it."""

    identity: CheckpointIdentity
    batch_ms: int


@dataclass(frozen=True)
class SparkPosition:
    """Where Spark will continue: after `committed`, with `planned` if a batch was planned and not finished."""

    query_id: str
    committed: Offsets
    planned: LoggedBatch | None


class SparkLog:
    """One checkpoint directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._synced_ns = 0

    def sync(self) -> None:
        """Fsync what Spark wrote here since the last call: Spark does not do so. Raises TransientError."""
        newest = self._synced_ns
        try:
            for file in [path for path in self.folder.rglob("*") if path.is_file()]:
                with suppress(FileNotFoundError):  # Spark removes what it no longer needs
                    changed = file.stat().st_mtime_ns
                    if changed >= self._synced_ns:
                        durable.sync([file])
                        newest = max(newest, changed)
        except OSError as error:
            raise TransientError("could not sync Spark's checkpoint", detail=str(error)) from error
        self._synced_ns = newest

    def position(self) -> SparkPosition | None:
        """Return Spark's position, None for an unused directory. Raises DamagedLog, TransientError."""
        with _reading(self.folder):
            return self._position()

    def _position(self) -> SparkPosition | None:
        query_id = self._query_id()
        if query_id is None:
            return None
        done = _numbers(self.folder / "commits")
        planned = _numbers(self.folder / "offsets")
        last = max(done, default=-1)
        if planned and max(planned) not in {last, last + 1}:
            raise self._damaged(f"commits end at {last}, offsets at {max(planned)}")
        committed = self._offsets(last)[0] if last >= 0 else None
        return SparkPosition(query_id, committed, self._batch(last + 1) if last + 1 in planned else None)

    def batch(self, batch_id: int) -> LoggedBatch:
        """Return a batch that Spark has planned. Raises DamagedLog, TransientError."""
        with _reading(self.folder):
            return self._batch(batch_id)

    def _batch(self, batch_id: int) -> LoggedBatch:
        start = self._offsets(batch_id - 1)[0] if batch_id > 0 else None
        end, batch_ms = self._offsets(batch_id)
        return LoggedBatch(CheckpointIdentity(self._query_id() or "", batch_id, start, end), batch_ms)

    def start_at(self, offsets: Offsets, query_id: str, now_ms: int) -> None:
        """Create the directory such that its next batch starts at `offsets`."""
        self.folder.mkdir(parents=True)
        (self.folder / "metadata").write_text(json.dumps({"id": query_id}))
        if offsets is None:
            self.sync()
            return
        header = {"batchWatermarkMs": 0, "batchTimestampMs": now_ms, "conf": {}}
        lines = ["v1", json.dumps(header), *("-" if o is None else json.dumps(o) for o in json.loads(offsets))]
        for name, text in (("offsets", "\n".join(lines)), ("commits", 'v1\n{"nextBatchWatermarkMs":0}')):
            (self.folder / name).mkdir()
            (self.folder / name / "0").write_text(text)
        self.sync()

    def _query_id(self) -> str | None:
        try:
            return str(json.loads((self.folder / "metadata").read_text())["id"])
        except FileNotFoundError:
            if _numbers(self.folder / "offsets"):
                raise self._damaged("metadata is missing") from None
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(f"metadata: {error}") from error

    def _offsets(self, batch_id: int) -> tuple[Offsets, int]:
        try:
            version, header, *lines = (self.folder / "offsets" / str(batch_id)).read_text().splitlines()
            if version != "v1" or not lines:
                raise self._damaged(f"offsets/{batch_id} has version {version!r} and {len(lines)} sources")
            sources: list[Any] = [None if line == "-" else json.loads(line) for line in lines]
            return canonical_offsets(sources), int(json.loads(header)["batchTimestampMs"])
        except (FileNotFoundError, IsADirectoryError, ValueError, KeyError, TypeError) as error:
            raise self._damaged(f"offsets/{batch_id}: {error}") from error

    def _damaged(self, what: str) -> DamagedLog:
        return DamagedLog("Spark's checkpoint directory is damaged", detail=f"{self.folder}: {what}.")


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """A file that cannot be read now is not a damaged one. Raises TransientError."""
    try:
        yield
    except OSError as error:
        raise checkpoint_failure(folder, error) from error


def checkpoint_failure(folder: Path, error: OSError) -> TransientError:
    """The error for a checkpoint directory that cannot be read or written now."""
    return TransientError(
        "could not use Spark's checkpoint directory", detail=f"{folder}: {error}.", hint=hint_for(error)
    )


def self_describing(offsets: Offsets) -> bool:
    """Whether offsets alone describe the position of every source: Kafka's `{"topic": {"partition": offset}}`."""
    if offsets is None:
        return False
    sources = json.loads(offsets)
    return bool(sources) and all(_is_kafka(source) for source in sources)


def behind(start: Offsets, end: Offsets) -> str:
    """Describe a partition whose Kafka offset goes backwards between two positions; empty if none does."""
    if start is None or end is None or not (self_describing(start) and self_describing(end)):
        return ""
    for before, after in zip(json.loads(start), json.loads(end), strict=False):
        for topic, partitions in before.items():
            for number, offset in partitions.items():
                found = after.get(topic, {}).get(number, 0)
                if found < offset:
                    return f"partition {number} of {topic} ends at {found}; {offset} was read before"
    return ""


def _is_kafka(source: Any) -> bool:
    if not isinstance(source, dict) or not source:
        return False
    return all(isinstance(partitions, dict) and _are_offsets(partitions) for partitions in source.values())


def _are_offsets(partitions: Mapping[str, Any]) -> bool:
    return all(whole_number(p) is not None and isinstance(o, int) for p, o in partitions.items())


def _numbers(folder: Path) -> set[int]:
    """Raises OSError if the folder exists and cannot be listed."""
    names: list[str] = []
    with suppress(FileNotFoundError, NotADirectoryError):
        names = [path.name for path in folder.iterdir()]
    return {number for name in names if (number := whole_number(name)) is not None}


_WAITING = ("Waiting for data to arrive", "Waiting for next trigger")


def waits_for_data(status: Mapping[str, Any]) -> bool:
    """Whether the sources were polled and had nothing; False during a poll."""
    return not status["isDataAvailable"] and str(status["message"]).startswith(_WAITING)


def unread_of(sources: Iterable[Mapping[str, Any]]) -> int | None:
    """Return how much the sources had beyond a batch: Kafka offsets, else 1 for anything; None if one does not say."""
    total = 0
    for source in sources:
        end, latest = _offset(source.get("endOffset")), _offset(source.get("latestOffset"))
        if latest is None:
            return None
        total += _ahead(end, latest)
    return total


def position_of(offsets: Offsets, sources: Sequence[Mapping[str, Any]] = ()) -> SourcePosition:
    """The position in each partition, as far as offsets of its kind contain numbers, and where Spark saw its end."""
    if offsets is None:
        return SourcePosition()
    body = json.loads(offsets)
    read = [part for source in (body if isinstance(body, list) else [body]) for part in _numbers_of(source)]
    ends = dict(pair for source in sources for pair in _numbers_of(_offset(source.get("latestOffset"))))
    return SourcePosition(
        tuple(SourcePart(name, at, None if name not in ends else max(at, ends[name])) for name, at in read)
    )


def _numbers_of(offset: Any) -> list[tuple[str, int]]:
    """Positions by partition: of Kafka as topic and partition, of others by name."""
    if not isinstance(offset, Mapping):
        return []
    found = []
    for name, value in offset.items():
        for part, number in value.items() if isinstance(value, Mapping) else [("", value)]:
            if isinstance(number, int) and not isinstance(number, bool):
                found.append((f"{name} {part}".strip(), number))
    return found


def _ahead(end: Any, latest: Any) -> int:
    if end == latest:
        return 0
    try:
        return sum(
            max(0, offset - end.get(topic, {}).get(partition, 0))
            for topic, partitions in latest.items()
            for partition, offset in partitions.items()
        )
    except (AttributeError, TypeError):  # not of Kafka's kind
        return 1


def _offset(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value in {"", "None", "null"}:
        return None
    try:
        return json.loads(value)
    except ValueError:
        return value
