"""The index of errors misses none."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.readers import ROOT

PASSED_ON = {
    "api/init.py: error.primary",
    "maintain/compact.py: error.primary",
    "plan/sinks.py: error.primary",
    "plan/sources.py: error.primary",
    "records/frames.py: problem.text",
    "source/kafka/brokers.py: error.primary",
    "source/table_stream.py: error.primary",
    "spark/failures.py: failure.primary",
    "spark/failures.py: failure.primary.replace('could not be', 'cannot be')",
    "spark/failures.py: primary.replace('could not be', 'cannot be')",
    "spark/tasks.py: self.primary",
    "storage/listing.py: primary",
}
"""Texts that belong to other calls, which are on the page."""


@pytest.fixture(scope="module")
def errors_page() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as path:
        path.syspath_prepend(str(ROOT / "scripts"))
        import errors_page  # noqa: PLC0415 - a script

        yield errors_page
    for name in ("errors_page", "pages"):
        sys.modules.pop(name, None)


def test_every_text_of_an_error_is_read_from_the_code(errors_page: Any) -> None:
    assert set(errors_page.collect().unread) <= PASSED_ON


def test_the_page_has_texts_of_classes_functions_and_tasks(errors_page: Any) -> None:
    page = errors_page.page()
    for words in (
        "lost its fence",  # raised
        "the ledger of a file source is incomplete",
        "it is not a JSON object",  # of a task
        "expected ; before",  # by a function
        "the batch could not be written",  # given to Tasks
        "ENVELOPE NONE has no clauses",
    ):
        assert words in page
    assert "| `` |" not in page
    assert set(errors_page.ADVICE) == set(errors_page._ordered(errors_page.errors.CalveError)) - {"CalveError"}
