"""Files of calve and Spark on disk are deleted, truncated or replaced by an older copy between two runs."""

import shutil
from pathlib import Path

import pytest

from tests.faults.conftest import MakeSink
from tests.faults.harness import KILLED, Sink

pytestmark = pytest.mark.embedded

STOPPED_MIDWAY = "record.before:5=kill"


def spark_folder(sink: Sink) -> Path:
    """The checkpoint directory that Spark uses now."""
    base = next((sink.home / "spark").iterdir())
    return base / (base / "current").read_text()


def started(make_sink: MakeSink, feed: str) -> Sink:
    """A sink that was killed with some batches committed and some work under way."""
    sink = make_sink(feed)
    assert sink.run(STOPPED_MIDWAY).code == KILLED
    return sink


def damage(sink: Sink, kind: str) -> None:
    folder = spark_folder(sink)
    if kind == "deleted":
        shutil.rmtree(folder.parent)
    elif kind == "truncated":
        newest = max((folder / "offsets").glob("[0-9]*"), key=lambda p: int(p.name))
        newest.write_bytes(newest.read_bytes()[:20])
        (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    else:  # an older copy: the last two batches never happened
        for log in ("offsets", "commits"):
            for file in sorted((folder / log).glob("[0-9]*"), key=lambda p: int(p.name))[-2:]:
                file.unlink()
                (file.parent / f".{file.name}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize(
    "kind", ["deleted", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("truncated", "older"))]
)
def test_a_source_with_offsets_of_its_own_goes_on_when_sparks_checkpoint_is(kind: str, make_sink: MakeSink) -> None:
    sink = started(make_sink, "partitions")
    damage(sink, kind)
    ended = sink.run()
    assert ended.code == 0, ended.stderr + str(ended.report)
    sink.check()


@pytest.mark.parametrize(
    "kind", ["truncated", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("deleted", "older"))]
)
def test_a_source_whose_position_is_in_sparks_checkpoint_stops_with_the_reason_when_it_is(
    kind: str, make_sink: MakeSink
) -> None:
    sink = started(make_sink, "stream")
    before = sink.table().metadata_location
    damage(sink, kind)
    ended = sink.run()
    assert (ended.code, ended.report["error"]) == (1, "SourceLost"), ended.stderr
    assert "cannot start at the recorded offsets" in ended.report["text"]
    assert sink.table().metadata_location == before, "nothing is written when nothing can be known"


def test_a_source_that_was_made_anew_stops_the_sink_with_the_reason(make_sink: MakeSink) -> None:
    sink = make_sink("partitions", changes=600)
    assert sink.run().code == 0
    before = sink.table().metadata_location
    for file in sorted((sink.home / "in").glob("*.parquet"))[2:]:
        file.unlink()
    ended = sink.run()
    assert (ended.code, ended.report["error"]) == (1, "SourceLost"), ended.stderr
    assert "was read before" in ended.report["text"]
    assert sink.table().metadata_location == before


@pytest.mark.slow
def test_a_checkpoint_that_is_put_back_is_continued(make_sink: MakeSink, tmp_path: Path) -> None:
    sink = started(make_sink, "stream")
    copy = tmp_path / "copy"
    shutil.move(spark_folder(sink).parent, copy)
    assert sink.run().report["error"] == "SourceLost"
    shutil.rmtree(sink.home / "spark" / sink.sink_id, ignore_errors=True)
    shutil.move(copy, sink.home / "spark" / sink.sink_id)
    assert sink.run().code == 0
    sink.check()


@pytest.mark.parametrize(
    "what", ["state", *(pytest.param(what, marks=pytest.mark.slow) for what in ("state/*/rec", "state/*/rec/*/0*"))]
)
@pytest.mark.usefixtures("spark")
def test_a_source_that_can_be_read_again_survives_the_loss_of(what: str, sink: Sink) -> None:
    die_with_work_pending(sink)
    for path in sink.home.glob(what):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    sink.finish()
    sink.check()


@pytest.mark.usefixtures("spark")
def test_pending_files_that_were_removed_are_written_again(sink: Sink) -> None:
    die_with_work_pending(sink)
    committed = committed_files(sink)
    for path in (sink.home / "warehouse").rglob("calve-*.parquet"):
        if path.name not in committed:
            path.unlink()
    sink.finish()
    sink.check()


def die_with_work_pending(sink: Sink) -> None:
    """Batches are recorded that the catalog did not take."""
    assert sink.die("record.before:6", "commit.before:4=error*")


def committed_files(sink: Sink) -> set[str]:
    table = sink.table()
    manifests = {m for snapshot in table.snapshots() for m in snapshot.manifests(table.io)}
    entries = [entry for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io)]
    return {entry.data_file.file_path.rpartition("/")[2] for entry in entries}
