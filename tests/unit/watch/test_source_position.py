"""Where a sink is in its source: as sources report it, as a status keeps it."""

import io
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from calve.cli.show import PlainConsole, show_statuses
from calve.cli.status import to_json
from calve.clock import SystemClock
from calve.model.health import PARTS_KEPT, Health, SourcePart, SourcePosition, Status
from calve.model.spec import NoEnvelope
from calve.pipeline.spark_log import position_of
from calve.source.files.definition import files
from calve.source.generator import orders
from calve.source.kafka.brokers import BrokerAccess, Brokers, TopicState
from calve.source.kafka.definition import Kafka
from calve.storage.state import LocalState
from calve.watch.status_files import read_status, status_file, write_status
from tests.support.clocks import ManualClock

DAY = 86_400_000


# ---- sources


def test_a_folder_reports_files_that_were_read_and_all(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in "abcde":
        (tmp_path / "in" / name).write_text("{}")
    source = files(tmp_path / "in", format="json", schema="id INT", max_files_per_checkpoint=2).open(
        LocalState(tmp_path / "state"), SystemClock()
    )
    assert source.position(None).parts[0].unread is None, "it was not listed yet"
    end = source.next_end(None)
    assert source.position(None).parts == (SourcePart("files", 0, 5),)
    assert source.position(end).parts == (SourcePart("files", 2, 5),)
    (tmp_path / "in" / "f").write_text("{}")
    further = source.next_end(end)
    assert source.position(further).parts == (SourcePart("files", 4, 6),)
    assert source.position('{"digest": "of another run", "ledger": 9}').parts == (SourcePart("files", None, 6),)


def test_a_generator_reports_its_end_if_it_has_one(tmp_path: Path) -> None:
    clock, state = ManualClock(), LocalState(tmp_path)
    ends = orders(rows=10, changes=5, per_checkpoint=4).open(state, clock)
    assert ends.position(ends.next_end(None)).parts == (SourcePart("changes", 4, 15),)
    paced = orders(rows=10, per_second=2).open(state, clock)
    paced.next_end(None)
    clock.seconds = 3.0
    end = paced.next_end('{"position":10}')
    assert paced.position('{"position":10}').parts == (SourcePart("changes", 10, 16),)
    assert paced.position(end).parts[0].unread == 0
    endless = orders(rows=10).open(state, clock)
    assert endless.position(endless.next_end(None)).parts[0].end is None


class Topic(Brokers):
    """Brokers whose answers are given."""

    def __init__(self, low: dict[int, int], high: dict[int, int]) -> None:
        super().__init__(BrokerAccess("b:9092"))
        self.now, self.asked = TopicState("id", low, high), 0

    def _state(self, topic: str) -> TopicState:
        del topic
        return self.now

    def _retention_ms(self, topic: str) -> int | None:
        del topic
        self.asked += 1
        return 7 * DAY


def test_a_topic_reports_ends_and_what_it_still_has_by_partition(tmp_path: Path) -> None:
    source = Kafka(BrokerAccess("b:9092"), "t", NoEnvelope(), "id INT", max_offsets=10).open(
        LocalState(tmp_path), SystemClock()
    )
    assert source.position(None) == SourcePosition()
    source._brokers = topic = Topic({0: 3, 1: 0}, {0: 13, 1: 10})
    end = source.next_end(None)
    assert source.position(None) == SourcePosition(
        (SourcePart("t 0", 3, 13, 3), SourcePart("t 1", 0, 10, 0)), keeps_ms=7 * DAY
    )
    assert sum(part.unread or 0 for part in source.position(end).parts) == 10
    topic.now = TopicState("id", {0: 6, 1: 5, 2: 0}, {0: 13, 1: 20, 2: 4})  # retention, new records, a new partition
    further = source.next_end(end)
    read = {part.name: part.read for part in source.position(end).parts}
    assert read == {"t 0": 8, "t 1": 5, "t 2": 0}
    assert source.position(end).parts[1] == SourcePart("t 1", 5, 20, 5)
    assert sum(part.read or 0 for part in source.position(further).parts) == 23
    assert topic.asked == 1, "it does not change often"


@pytest.mark.parametrize("text", [True, False], ids=["spark 4", "spark 3.5"])
def test_positions_of_sparks_sources_are_read_from_its_offsets(*, text: bool) -> None:
    def told(offset: Any) -> dict[str, Any]:
        return {"latestOffset": json.dumps(offset) if text else offset}

    read = json.dumps([{"t": {"0": 5, "1": 7}}, {"logOffset": 3}])
    found = position_of(read, [told({"t": {"0": 9, "1": 4}}), told(None)])
    assert found.parts == (SourcePart("t 0", 5, 9), SourcePart("t 1", 7, 7), SourcePart("logOffset", 3))
    assert position_of(None) == SourcePosition()
    assert position_of('["text", 3, {"a": true, "b": null}]', [told("text")]) == SourcePosition()


# ---- the status


def status_at(*parts: SourcePart, keeps_ms: int | None = None, **values: Any) -> Status:
    begun = replace(Status.unknown("s", 1_000), health=Health.RUNNING, **values)
    return begun.at_source(SourcePosition(parts, keeps_ms))


def test_a_status_says_what_is_unread_and_how_soon_it_is_lost() -> None:
    found = status_at(
        SourcePart("t 0", 50, 50, 49),  # all of it is read: nothing can be lost
        SourcePart("t 1", 100, 130, 40),
        SourcePart("t 2", 100, 105, 80),
        SourcePart("t 3"),
        keeps_ms=10_000,
        lag_ms=4_000,
    )
    assert (found.unread_most, found.retention_left, found.source_parts) == (30, 20, 4)
    assert found.retention_left_ms(1_000) == 6_000
    assert found.retention_left_ms(3_000) == 4_000, "the lag grows"
    assert found.retention_left_ms(99_000) == 0
    assert status_at(SourcePart("t 0", 5, 5, 0), keeps_ms=9).retention_left is None
    assert status_at(lag_ms=5).retention_left_ms(1_000) is None


def test_a_topic_of_thousands_of_partitions_keeps_the_status_small_and_its_figures_exact(tmp_path: Path) -> None:
    parts = [SourcePart(f"t {p}", 0, p % 997, 0) for p in range(5_000)]
    parts[4_321] = SourcePart("t 4321", 7, 5_000, 5)
    found = status_at(*parts)
    assert len(found.source) == PARTS_KEPT
    assert (found.source_parts, found.unread_most) == (5_000, 4_993)
    assert "t 4321" in {part.name for part in found.source}
    assert [part.name for part in found.source] == sorted(
        (part.name for part in found.source), key=lambda name: int(name.split()[1])
    ), "in the order of the source"
    file = status_file(tmp_path, "s")
    assert write_status(file, replace(found, health=Health.STOPPED)) == ""
    assert file.stat().st_size < 20_000
    again = read_status(file)
    assert again is not None
    assert asdict(again)["source"] == asdict(found)["source"]


def test_a_restart_keeps_the_last_position() -> None:
    before = replace(status_at(SourcePart("t 0", 5, 9, 0)), table="shop.t")
    begun = Status.begun("s", "shop.t", before, 2_000)
    assert (begun.source, begun.unread_most) == (before.source, 4)


# ---- the terminal


def shown(status: Status, now_ms: int = 1_000) -> str:
    out = io.StringIO()
    show_statuses(PlainConsole(file=out, width=200), [status], Path("home"), now_ms)
    return out.getvalue()


def test_calve_status_says_which_partition_is_behind_and_when_records_are_lost() -> None:
    found = status_at(
        SourcePart("t 0", 100, 110, 90), SourcePart("t 1", 100, 130, 40), keeps_ms=10_000, lag_ms=4_000, unread=40
    )
    text = shown(replace(found, counts="offsets"))
    assert "s: partition t 1 has 30 of the unread offsets" in text
    assert "s: the source removes unread offsets after 10 more, at the earliest in 6s" in text
    assert "removes" not in shown(status_at(SourcePart("files", 3, 5), unread=2))
    assert "partition" not in shown(status_at(SourcePart("t 0", 5, 5, 0), SourcePart("t 1", 5, 5, 0), unread=0))


def test_the_json_of_a_status_has_the_position_and_what_is_left() -> None:
    body = to_json(status_at(SourcePart("t 0", 100, 110, 90), keeps_ms=10_000, lag_ms=4_000), 1_000)
    assert body["source"] == ({"name": "t 0", "read": 100, "end": 110, "oldest": 90},)
    assert (body["unread_most"], body["retention_left"], body["retention_left_ms"]) == (10, 10, 6_000)
