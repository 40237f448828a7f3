"""Death right before and right after every durable step, then a restart: the table is as if nothing had happened.

One sink dies at one step after the other, each time a new one continues where the last one died. A sink dies in memory,
where all its threads end, or its process is killed with SIGKILL. `make test` has one kill of each kind of sink, and
deaths in memory at the other steps; `make soak` kills at all of them. Of steps that leave the same state behind
(unreferenced files, for example) `make test` tries one.
"""

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Protocol

import pytest

from tests.faults.conftest import MakeSink
from tests.faults.harness import KILLED, Sink
from tests.faults.process import READS

START = ["claim.after", "adopt.after", "record.after:2"]
COMMIT = ["resolve.after:1", "commit.after:1", "commit.after:3", "receipt.before:2"]
THE_REST = {
    "start": ["claim.before", "adopt.before", "state.put:2", "state.put:4"],
    "checkpoint": ["files.after:2", "manifests.after:2", "record.before:2"],
    "commit": ["resolve.before:1", "manifest-list.after:3", "commit.before:3", "receipt.after:2"],
    "key index": ["index.before:2", "index.merge.before"],
}
INDEX = ["index.after:2", "index.merge.after"]
WINDOW = ["stage.after:2", "record.after:3", "commit.after:2"]
LONG_WINDOW = [
    "stage.after:2",
    "record.before:3",
    "record.after:3",
    "files.before:1",
    "manifests.after:1",
    "commit.before:2",
    "commit.after:2",
]
MAINTENANCE = ["beside.asked", "maintain.after"]
THE_REST_OF_IT = ["maintain.before", "beside.done"]
IN_SHORT = ["record.after:2", "commit.after:2"]
STREAM = ["files.after:2", "record.before:2", "record.after:2", "spark-commit.before:2"]


BOTH = ("position", "equality")
IN_BACKGROUND = ("maintain.", "index.merge.", "beside.")
"""Steps of threads that a sink does not wait for when its input is complete."""


class Survives(Protocol):
    """Lets a sink die at steps, one after the other, then lets it finish, and checks the table.

    `deletes` are taken in turns, one for each run; nothing is looked up for those by equality.
    """

    def __call__(self, sink: Sink, steps: list[str], deletes: Sequence[str] = (), **options: str) -> None: ...


def runs_of(sink: Sink, steps: list[str], deletes: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Steps that are reached, each with the options of its run: its encoding, and what its source waits for."""
    encodings = deletes or [sink.where.deletes]
    reached = [step for step in steps if set(encodings) != {"equality"} or not step.startswith("resolve.")]
    for number, (step, encoding) in enumerate(zip(reached, cycle(encodings), strict=False), start=1):
        yield step, {"CALVE_TEST_DELETES": encoding, **awaited(step, number / len(reached))}


def awaited(step: str, share: float) -> dict[str, str]:
    """The option of a run that must reach a step of a thread in the background before it reads more than a share."""
    point, _, _ = step.partition(":")
    return {"CALVE_TEST_AWAITS": f"{point} {share}"} if point.startswith(IN_BACKGROUND) else {}


def survives_kills(sink: Sink, steps: list[str], deletes: Sequence[str] = (), **options: str) -> None:
    for step, of_run in runs_of(sink, steps, deletes):
        ended = sink.run(f"{step}=kill", **of_run, **options)
        assert ended.code == KILLED, f"{step} was not reached: {ended}"
    ended = sink.run(**options)
    assert ended.code == 0, ended.stderr + str(ended.report)
    sink.check(spark=True)


def survives_deaths(sink: Sink, steps: list[str], deletes: Sequence[str] = (), **options: str) -> None:
    for step, of_run in runs_of(sink, steps, deletes):
        assert sink.die(step, **of_run, **options), f"{step} was not reached"
    sink.finish(**options)
    sink.check(spark=True)


@pytest.fixture(params=["in memory", pytest.param("killed", marks=pytest.mark.slow)])
def survives(request: pytest.FixtureRequest) -> Survives:
    if request.param == "killed":
        return survives_kills
    request.getfixturevalue("spark")
    return survives_deaths


@pytest.mark.parametrize(
    ("steps", "deletes", "changes"),
    [(START, BOTH, 1600), (COMMIT, BOTH[:1], 2600)],
    ids=["start and first checkpoint", "commit"],
)
@pytest.mark.positions
def test_a_sink_survives_deaths_around_its(
    survives: Survives, steps: list[str], deletes: Sequence[str], changes: int, make_sink: MakeSink
) -> None:
    survives(make_sink("orders", changes=changes), steps, deletes)


@pytest.mark.positions
@pytest.mark.parametrize("steps", [MAINTENANCE, pytest.param(THE_REST_OF_IT, marks=pytest.mark.slow)], ids=" ".join)
def test_a_sink_survives_kills_around_its_maintenance_by_processes_beside_it(
    make_sink: MakeSink, steps: list[str]
) -> None:
    sink = make_sink("orders", changes=12_000)  # enough commits after each kill
    survives_kills(sink, steps, BOTH[:1], CALVE_TEST_BESIDE="yes")


@pytest.mark.positions
def test_a_sink_survives_a_kill_between_catalog_and_receipt(make_sink: MakeSink) -> None:
    survives_kills(make_sink("orders", changes=850), ["commit.after:2"])


@pytest.mark.slow
@pytest.mark.positions
def test_a_sink_that_deletes_by_equality_survives_kills_around_its_commit(make_sink: MakeSink) -> None:
    survives_kills(make_sink("orders", changes=4600), COMMIT, BOTH[1:])


@pytest.mark.slow
@pytest.mark.positions
@pytest.mark.parametrize("around", THE_REST)
def test_a_sink_survives_kills_around_the_rest_of_its(around: str, make_sink: MakeSink) -> None:
    index = {"CALVE_TEST_KEY_INDEX": "on"} if around == "key index" else {}
    survives_kills(make_sink("orders", changes=4600), THE_REST[around], BOTH[:1] if index else BOTH, **index)


@pytest.mark.positions
def test_a_sink_survives_deaths_around_its_key_index(survives: Survives, make_sink: MakeSink) -> None:
    survives(make_sink("orders", changes=4600), INDEX, CALVE_TEST_KEY_INDEX="on")


@pytest.mark.remote
@pytest.mark.positions
def test_a_sink_with_everything_in_s3_survives_kills_between_its_steps(make_sink: MakeSink) -> None:
    survives_kills(make_sink("orders", changes=850), IN_SHORT, CALVE_TEST_KEY_INDEX="on")


@pytest.mark.parametrize(
    ("intervals", "steps"),
    [("2s 200ms", WINDOW), pytest.param("10s 1s", LONG_WINDOW, marks=pytest.mark.slow)],
    ids=["short", "long"],
)
def test_a_sink_survives_deaths_around_staging_and_closing_a_window(
    survives: Survives, make_sink: MakeSink, intervals: str, steps: list[str]
) -> None:
    sink = make_sink("windows", changes=3600)
    survives(sink, steps, CALVE_TEST_INTERVALS=intervals)
    reads = (sink.home / READS).read_text().splitlines()
    assert len(reads) - len(set(reads)) <= len(steps), "a crash reads one checkpoint again at most, not its window"
    assert not sink.staged(), "what is committed is staged no more"


@pytest.mark.parametrize(
    "steps",
    [["record.after:2"], pytest.param(["files.after:2", "record.after:2", "commit.after:3"], marks=pytest.mark.slow)],
    ids=["short", "long"],
)
def test_a_sink_that_stages_nothing_survives_deaths_in_mid_window(
    survives: Survives, make_sink: MakeSink, steps: list[str]
) -> None:
    sink = make_sink("replay")
    survives(sink, steps, CALVE_TEST_INTERVALS="1h 1s")
    assert not sink.staged()


@pytest.mark.parametrize(
    ("feed", "steps"), [("stream", STREAM[::2]), pytest.param("partitions", STREAM[1::2], marks=pytest.mark.slow)]
)
def test_a_streaming_query_survives_kills_around_its_checkpoints(
    feed: str, steps: list[str], make_sink: MakeSink
) -> None:
    survives_kills(make_sink(feed, changes=2600), steps)
