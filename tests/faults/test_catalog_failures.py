"""A catalog that loses responses or does not respond: no duplicates, no losses, the stream continues."""

import pytest

from calve.errors import CalveError
from tests.faults.harness import Sink

pytestmark = pytest.mark.usefixtures("spark")


def test_a_lost_answer_to_a_claim_is_found_by_the_run_id_and_to_a_commit_by_its_id(sink: Sink) -> None:
    sink.finish("claim.after=error; commit.after:2=error; commit.after:4=error; commit.after:5=error")
    sink.check()


def test_a_catalog_that_fails_for_many_batches_stalls_the_commits_and_not_the_stream(sink: Sink) -> None:
    failing = "; ".join(f"commit.before:{n}=error" for n in range(2, 13))
    assert sink.finish(failing).commits == 8
    sink.check()


def test_work_that_could_not_be_committed_goes_out_after_a_restart(sink: Sink) -> None:
    with pytest.raises(CalveError, match="did not catch up"):
        sink.finish("commit.before:3=error*", CALVE_TEST_TIMEOUT="8")
    sink.finish()
    sink.check()


def test_a_table_that_cannot_be_loaded_for_a_while_is_waited_for(sink: Sink) -> None:
    sink.finish("; ".join(f"load:{n}=error" for n in range(4, 12)))
    sink.check()


def test_a_state_location_that_fails_for_a_while_is_waited_for(sink: Sink) -> None:
    sink.finish("; ".join(f"state.put:{n}=error" for n in (4, 5, 7)))
    sink.check()
