"""Errors of engines and stores, in calve's terms."""

import errno
import os
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from calve.errors import (
    BadRow,
    CalveError,
    FencedError,
    KeyViolation,
    SourceLost,
    TerminalError,
    TransientError,
    UnreadableFile,
)
from calve.spark import failures
from calve.spark.failures import CAUGHT, failure_of, own_file_failure
from calve.spark.version import SparkFacts

BATCH = "the batch could not be written"


def test_an_error_inside_a_longer_text_comes_back_as_itself() -> None:
    bad = BadRow("no key", detail='quote " and {brace} $1', hint="look\nagain")
    found = failure_of(OSError(f"org.apache.spark.SparkException: Job aborted\n\tat {bad.encode()}\n\tat x"), BATCH)
    assert (type(found), found.primary, found.detail, found.hint) == (BadRow, bad.primary, bad.detail, bad.hint)


def test_an_error_of_any_family_keeps_its_family() -> None:
    assert isinstance(failure_of(OSError(FencedError("gone").encode()), BATCH), FencedError)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_store_says_so(code: int) -> None:
    found = failure_of(OSError(code, os.strerror(code), "/data/x.parquet"), BATCH)
    assert isinstance(found, TransientError)
    assert found.primary == "the batch could not be written: no space is left"
    assert "/data/x.parquet" in found.detail


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.EPERM])
def test_a_store_that_refuses_says_so(code: int) -> None:
    found = failure_of(OSError(code, os.strerror(code), "/data/x.parquet"), BATCH)
    assert isinstance(found, TransientError)
    assert found.primary == "the batch could not be written: the store denied access"
    assert "/data/x.parquet" in found.detail


def test_the_line_that_names_the_cause_is_the_detail() -> None:
    text = (
        "Job aborted due to stage failure\n\tat a.b.c\nCaused by: java.io.IOException: No space left on device\n\tat d"
    )
    assert failure_of(OSError(text), BATCH).detail == "IOException: No space left on device"


def test_a_value_that_does_not_fit_is_a_bad_row() -> None:
    with pytest.raises(pa.ArrowInvalid) as caught:
        pa.array(["x"]).cast(pa.int64())
    assert isinstance(failure_of(caught.value, BATCH), BadRow)


def test_the_line_with_which_py4j_begins_is_not_the_detail() -> None:
    text = (
        "An error occurred while calling o107.getResult.\n: org.apache.spark.SparkException: lost an executor\n\tat x"
    )
    assert failure_of(OSError(text), BATCH).detail == "SparkException: lost an executor"


def test_anything_else_is_worth_another_try() -> None:
    found = failure_of(ConnectionResetError("connection reset by peer"), BATCH)
    assert isinstance(found, TransientError)
    assert found.detail == "ConnectionResetError: connection reset by peer"


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
    found = failure_of(OSError(text), BATCH)
    assert isinstance(found, TerminalError)
    assert found.primary == primary
    assert "docs/cluster.md" in found.hint


def test_a_spark_that_has_stopped_is_not_waited_for() -> None:
    text = (
        "An error occurred\n: java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\n\tat x"
    )
    found = failure_of(OSError(text), BATCH)
    assert isinstance(found, TerminalError)
    assert found.primary == "Spark has stopped"


def test_words_of_the_users_data_decide_nothing() -> None:
    with pytest.raises(pa.ArrowInvalid) as caught:
        pa.array(["No space left on device, Permission denied"]).cast(pa.int64())
    assert isinstance(failure_of(caught.value, BATCH), BadRow)


def traceback_of(last: str) -> OSError:
    return OSError(f'Traceback (most recent call last):\n  File "x.py", line 1, in run\n    raise ex\n{last}\n')


@pytest.mark.parametrize("last", ["RecursionError: maximum recursion depth exceeded", "KeyError: 'a'"])
def test_a_task_that_fails_on_its_rows_is_not_tried_for_ever(last: str) -> None:
    found = failure_of(traceback_of(last), BATCH)
    assert type(found) is TerminalError
    assert last in found.detail


def test_memory_that_ran_out_is_tried_again_and_says_what_to_set() -> None:
    for text in ("Caused by: java.lang.OutOfMemoryError: Java heap space", ": java.lang.OutOfMemoryError: x"):
        found = failure_of(OSError(f"Job aborted\n{text}"), BATCH)
        assert isinstance(found, TransientError)
        assert "spark.executor.memory" in found.hint


@pytest.mark.parametrize(
    "text",
    [
        "Caused by: java.net.SocketTimeoutException: Read timed out",
        "Caused by: org.apache.hadoop.fs.s3a.AWSClientIOException: getFileStatus: 503",
        "Caused by: java.io.IOException: Input/output error",
        "Job aborted due to stage failure: ExecutorLostFailure (executor 1 exited caused by one of the running tasks)",
    ],
)
def test_a_store_or_an_executor_that_is_away_is_waited_for(text: str) -> None:
    found = failure_of(OSError(f"Job aborted\n\tat x\n{text}"), BATCH)
    assert isinstance(found, TransientError)
    assert found.primary == BATCH


def test_secrets_in_addresses_are_not_told() -> None:
    told = "https://me:hunter2@store/x?X-Amz-Signature=abcdef&sig=1 and s3://bucket/key?password=hunter3"
    detail = failure_of(ConnectionResetError(f"cannot reach {told}"), BATCH).detail
    assert not any(secret in detail for secret in ("hunter", "abcdef"))
    assert "store/x" in detail


def test_an_unreadable_file_keeps_its_name_through_pickle() -> None:
    error = UnreadableFile("p", detail="d", hint="h", file="s3a://b/x")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.primary, again.detail, again.hint, again.file) == (
        UnreadableFile,
        "p",
        "d",
        "h",
        error.file,
    )


@pytest.mark.parametrize("damage", ["cut", "magic", "empty", "flipped", "footer"])
def test_a_damaged_file_of_the_table_is_not_tried_again(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": pa.array(range(10_000)), "b": [f"{n * 7919}" for n in range(10_000)]}), path)
    whole = path.read_bytes()
    at = len(whole) // 3
    path.write_bytes(
        {
            "cut": whole[:at],
            "magic": b"no parquet file, but long enough to be one",
            "empty": b"",
            "flipped": whole[:at] + bytes(255 - byte for byte in whole[at : at + 4000]) + whole[at + 4000 :],
            "footer": whole[:-60] + bytes(40) + whole[-20:],
        }[damage]
    )
    with pytest.raises(CAUGHT) as caught:
        pq.read_table(path)
    found = own_file_failure(caught.value, "a file could not be read", str(path))
    assert type(found) is TerminalError
    assert found.primary == "a file cannot be read"
    assert str(path) in found.detail


def test_a_file_of_the_table_that_is_not_there_or_out_of_reach_is_tried_again(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        pq.read_table(tmp_path / "x.parquet")
    assert isinstance(own_file_failure(caught.value, "p", "x"), TransientError)
    lost = OSError("When reading: AWS Error NETWORK_CONNECTION during GetObject operation: curlCode: 28")
    assert isinstance(own_file_failure(lost, "p", "x"), TransientError)


class Thrown:
    """An exception of Java."""

    def __init__(self, name: str, message: str, condition: str = "", cause: "Thrown | None" = None) -> None:
        self.name, self.message, self.condition, self.cause = name, message, condition, cause

    def getClass(self) -> "Thrown":  # noqa: N802 - Java's names
        return self

    def getName(self) -> str:  # noqa: N802
        return self.name

    def getMessage(self) -> str:  # noqa: N802
        return self.message

    def getCause(self) -> "Thrown | None":  # noqa: N802
        return self.cause


class Raised(PySparkException):
    def __init__(self, java: Thrown) -> None:
        super().__init__(java.message)
        self._origin = java


def raised_by_spark(name: str, message: str, condition: str, monkeypatch: pytest.MonkeyPatch) -> Raised:
    """As the driver hears of it: the message is in that of the job, too."""
    monkeypatch.setattr(failures, "facts_of_throwable", lambda java: SparkFacts(java.condition))
    cause = Thrown(name, message, condition)
    return Raised(Thrown("org.apache.spark.SparkException", f"Job aborted due to stage failure: {message}", "", cause))


@pytest.mark.parametrize("family", [FencedError, TransientError, TerminalError])
def test_a_value_that_looks_like_an_error_of_calve_is_a_value(
    family: type[CalveError], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = f"[CAST_INVALID_INPUT] The value '{family('made up').encode()}' of the type STRING cannot be cast to INT"
    name = "org.apache.spark.SparkNumberFormatException"
    found = failure_of(raised_by_spark(name, said, "CAST_INVALID_INPUT", monkeypatch), BATCH)
    assert found.primary == BATCH
    assert "made up" in found.detail


@pytest.mark.parametrize("condition", ["", "USER_RAISED_EXCEPTION", "_LEGACY_ERROR_USER_RAISED_EXCEPTION"])
def test_an_error_that_an_expression_of_calve_raises_is_that_error(
    condition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = f"[USER_RAISED_EXCEPTION] {KeyViolation('a key is there twice').encode()}"
    found = failure_of(raised_by_spark("org.apache.spark.SparkRuntimeException", said, condition, monkeypatch), BATCH)
    assert isinstance(found, KeyViolation)


@pytest.mark.parametrize(
    ("name", "message", "condition", "file"),
    [
        (
            "java.lang.RuntimeException",
            "file:/in/a b.parquet is not a Parquet file. Expected magic number at tail, but found [1, 2, 3, 4]",
            "",
            "file:/in/a b.parquet",
        ),
        (
            "org.apache.orc.FileFormatException",
            "Malformed ORC file file:/in/a.b.orc. Invalid postscript.",
            "",
            "file:/in/a.b.orc",
        ),
        ("java.io.EOFException", "Unexpected end of input stream", "", ""),
        ("java.io.IOException", "incorrect header check", "", ""),
        ("java.util.zip.ZipException", "Not in GZIP format", "", ""),
        (
            "org.apache.spark.SparkRuntimeException",
            'Found duplicate field(s) "s": [s, S] in case-insensitive mode.',
            "_LEGACY_ERROR_TEMP_2093",
            "",
        ),
    ],
)
def test_a_damaged_file_is_one_although_spark_3_5_does_not_say_so(
    name: str, message: str, condition: str, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = failure_of(raised_by_spark(name, message, condition, monkeypatch), BATCH)
    assert isinstance(found, UnreadableFile)
    assert found.file == file


def test_a_worker_that_dies_is_no_damaged_file(monkeypatch: pytest.MonkeyPatch) -> None:
    found = failure_of(raised_by_spark("java.io.EOFException", "", "", monkeypatch), BATCH)
    assert isinstance(found, TransientError)


def test_a_file_that_spark_3_5_may_not_read_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    name, condition = "org.apache.spark.SparkFileNotFoundException", "_LEGACY_ERROR_TEMP_2055"
    more = "\nIt is possible the underlying files have been updated."
    refused = raised_by_spark(name, f"/in/a.json (Permission denied){more}", condition, monkeypatch)
    found = failure_of(refused, BATCH)
    assert isinstance(found, TransientError)
    assert found.hint == "Give this process permission to read it; calve retries."
    gone = raised_by_spark(name, f"File file:/in/a.json does not exist{more}", condition, monkeypatch)
    assert isinstance(failure_of(gone, BATCH), SourceLost)


def test_executors_with_another_version_of_a_package_have_to_be_set_up() -> None:
    text = "Traceback (most recent call last):\n  File x\nImportError: cannot import name 'a' from 'calve.b'\n"
    found = failure_of(OSError(text), BATCH)
    assert isinstance(found, TerminalError)
    assert found.primary == "Spark's executors cannot import what calve needs"
    assert "cannot import name 'a'" in found.detail
