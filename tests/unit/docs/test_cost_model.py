"""The cost model says what the measurements say where there are some, and grows as the code reads the index."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.readers import ROOT


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as path:
        path.syspath_prepend(str(ROOT / "benchmarks"))
        import cost_model  # noqa: PLC0415 - a script

        yield cost_model
    for name in ("cost_model", "harness"):
        sys.modules.pop(name, None)


def result(case: str, median: float, **facts: float) -> dict[str, Any]:
    return {"case": case, "system": "calve, positions", "values": [median], "median": median, "facts": facts}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Batches of 20 ms + 2 us per change; half of it is the committer's."""
    streams = [
        result(
            f"20 x {changes:,} changes on 5,000,000 rows, between two commits",
            20 + 0.002 * changes,
            index_ms=10 + 0.001 * changes,
            read_ms=10 + 0.001 * changes,
        )
        for changes in (1_000, 10_000, 100_000, 1_000_000)
    ]
    rate = result("20 x 1,000 changes on 5,000,000 rows", 100_000.0, cpu_s_per_million=3.0)
    (tmp_path / "stream.json").write_text(json.dumps({"runs": [{"results": [*streams, rate]}]}))
    return tmp_path


def test_the_fit_meets_measurements_that_follow_the_model(model: Any, results: Path) -> None:
    measured = model.read_results(results)
    assert measured.batch.fixed == pytest.approx(0.02, rel=1e-6)
    assert measured.batch.per_change == pytest.approx(2e-6, rel=1e-6)
    assert measured.commit.at(100_000) == pytest.approx(0.11, rel=1e-6)
    assert measured.cpu.at(1e6) == pytest.approx(3.0)
    assert model.predict(measured, 5_000_000, 100_000).seconds == pytest.approx(0.22, rel=1e-6)


def test_a_batch_reads_whole_parts_until_its_keys_are_few_among_the_pages(model: Any, results: Path) -> None:
    measured = model.read_results(results)
    dense, sparse = model.predict(measured, 2.5e8, 300_000), model.predict(measured, 1e11, 100_000, model.LOCAL)
    kept = model.memory_on(32 << 30)
    assert dense.index_read_mb == pytest.approx((16 * 2.5e8 - kept) / 1e6)
    assert dense.index_requests == pytest.approx((16 * 2.5e8 - kept) / model.PART_BYTES)
    assert sparse.index_requests == pytest.approx(100_000, rel=0.01)  # a page per change
    assert sparse.index_read_mb == pytest.approx(100_000 * model.PAGE * 16 / 1e6, rel=0.01)


def test_the_first_limit_is_the_memory_of_the_index(model: Any, results: Path) -> None:
    first, second, *_ = model.limits(model.read_results(results), 100_000)
    assert "no longer fits" in first.what
    assert first.rows == pytest.approx(model.memory_on(32 << 30) / 16)
    small = model.predict(model.read_results(results), 5_000_000, 100_000).seconds
    assert "twice as long" in second.what
    at_limit = model.predict(model.read_results(results), second.rows, 100_000).seconds
    assert at_limit == pytest.approx(2 * small, rel=0.05)


def test_larger_tables_of_growth_are_compared_and_not_fitted(model: Any, results: Path) -> None:
    before = model.read_results(results)
    measured = [
        {
            "case": f"100,000 changes into {rows} rows, 3 batches{more}",
            "system": "calve, positions",
            "values": [0.9, 0.4],
            "facts": {"last_half": 0.45, "index_bytes_per_row": index},
        }
        for rows, more, index in (
            ("1,000,000", "", 0.0),  # too few rows for an index
            ("20,000,000", "", 17.0),
            ("20,000,000", ", 500 columns", 17.0),
        )
    ]
    (results / "growth.json").write_text(json.dumps({"runs": [{"results": measured}]}))
    after = model.read_results(results)
    assert after.grown == ((20_000_000, 100_000, 0.45),)
    assert after.batch == before.batch
    assert after.index_bytes == 17.0


def test_without_results_it_says_what_it_needs(model: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"needs results of stream.py and upserts.py"):
        model.read_results(tmp_path)


def test_executors_share_what_a_large_batch_reads_and_the_driver_does_not(model: Any, results: Path) -> None:
    measured, changes = model.read_results(results), 2 * model.DRIVER_KEYS
    few, many = (
        model.by_tasks(measured, 1e10, changes, model.replace(model.PAPER, executors=executors))
        for executors in (10, 100)
    )
    assert (many.computing, many.reading) == pytest.approx((few.computing / 10, few.reading / 10))
    assert many.driver_seconds == few.driver_seconds
    assert few.rate < many.rate < 10 * few.rate


def test_pages_that_are_close_are_one_read_and_those_far_apart_are_not(model: Any) -> None:
    page = model.PAGE * model.ENTRY_BYTES
    close, far = model.joined_pages(2e6, 4e5, 128 << 10), model.joined_pages(2e8, 1e5, 128 << 10)
    assert close[0] < 0.05 * 4e5
    assert 4e5 * page < close[1] < 2e6 * page, "more than the pages, and less than the whole index"
    assert far == pytest.approx((1e5, 1e5 * page), rel=0.1)
