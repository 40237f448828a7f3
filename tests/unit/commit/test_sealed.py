"""A sink that is complete."""

from pathlib import Path

import pytest

from calve import faults
from calve.storage.state import LocalState
from tests.support.runs import Run, spec_of


class Death(BaseException):
    """Ends a run."""


def die_at(point: str) -> None:
    def reached(here: str) -> None:
        if here == point:
            raise Death

    faults.install(reached)


def test_a_run_that_dies_right_after_the_last_commit_leaves_nothing_staged(tmp_path: Path) -> None:
    run = Run(tmp_path, spec_of("s"))
    run.commit({1: "a"})
    state = LocalState(tmp_path / "state" / "s")
    state.put(f"{run.run.checkpoints.stage_folder}/part", b"rows of the last window")
    later = f"stage/{run.run.state.fence.epoch + 1:08d}-of-another-generation/part"
    state.put(later, b"rows")
    run.run.batches.seal()
    die_at("receipt.before")
    try:
        with pytest.raises(Death):
            run.run.commits.commit_next()
    finally:
        faults.install(None)
    assert len(state.list("stage")) == 2
    after = Run(tmp_path, spec_of("s"))
    assert after.run.state.sealed
    assert state.list("stage") == [later]
