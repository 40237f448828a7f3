"""Errors of engines and stores, in calve's terms."""

import errno
import os

import pyarrow as pa
import pytest

from calve.errors import BadRow, FencedError, TerminalError, TransientError
from calve.write.failures import failure_of


def test_an_error_inside_a_longer_text_comes_back_as_itself() -> None:
    bad = BadRow("no key", detail='quote " and {brace} $1', hint="look\nagain")
    found = failure_of(OSError(f"org.apache.spark.SparkException: Job aborted\n\tat {bad.encode()}\n\tat x"))
    assert (type(found), found.primary, found.detail, found.hint) == (BadRow, bad.primary, bad.detail, bad.hint)


def test_an_error_of_any_family_keeps_its_family() -> None:
    assert isinstance(failure_of(OSError(FencedError("gone").encode())), FencedError)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_store_says_so(code: int) -> None:
    found = failure_of(OSError(code, os.strerror(code), "/data/x.parquet"))
    assert isinstance(found, TransientError)
    assert found.primary == "the batch could not be written: no space is left"
    assert "/data/x.parquet" in found.detail


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.EPERM])
def test_a_store_that_refuses_says_so(code: int) -> None:
    found = failure_of(OSError(code, os.strerror(code), "/data/x.parquet"))
    assert isinstance(found, TransientError)
    assert found.primary == "the batch could not be written: the store refuses"
    assert "/data/x.parquet" in found.detail


def test_the_line_that_names_the_cause_is_the_detail() -> None:
    text = (
        "Job aborted due to stage failure\n\tat a.b.c\nCaused by: java.io.IOException: No space left on device\n\tat d"
    )
    assert failure_of(OSError(text)).detail == "Caused by: java.io.IOException: No space left on device"


def test_a_value_that_does_not_fit_is_a_bad_row() -> None:
    with pytest.raises(pa.ArrowInvalid) as caught:
        pa.array(["x"]).cast(pa.int64())
    assert isinstance(failure_of(caught.value), BadRow)


def test_the_line_with_which_py4j_begins_is_not_the_detail() -> None:
    text = (
        "An error occurred while calling o107.getResult.\n: org.apache.spark.SparkException: lost an executor\n\tat x"
    )
    assert failure_of(OSError(text)).detail == "org.apache.spark.SparkException: lost an executor"


def test_anything_else_is_worth_another_try() -> None:
    found = failure_of(ConnectionResetError("connection reset by peer"))
    assert isinstance(found, TransientError)
    assert found.detail == "connection reset by peer"


@pytest.mark.parametrize(
    ("text", "primary"),
    [
        (
            "Job aborted\n  File serializers.py\nModuleNotFoundError: No module named 'calve'\n\tat x",
            'Spark\'s executors cannot import the package "calve"',
        ),
        (
            'Caused by: java.io.IOException: Cannot run program "/opt/env/bin/python": error=2, No such file',
            'Spark\'s executors have no Python at "/opt/env/bin/python"',
        ),
        (
            "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than 3.11.",
            "Spark's executors have another version of Python",
        ),
    ],
)
def test_executors_that_lack_what_calve_needs_say_so_and_where_to_read_on(text: str, primary: str) -> None:
    found = failure_of(OSError(text))
    assert isinstance(found, TerminalError)
    assert found.primary == primary
    assert "docs/cluster.md" in found.hint


def test_a_spark_that_has_stopped_is_not_waited_for() -> None:
    text = (
        "An error occurred\n: java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\n\tat x"
    )
    found = failure_of(OSError(text))
    assert isinstance(found, TerminalError)
    assert found.primary == "Spark has stopped"
