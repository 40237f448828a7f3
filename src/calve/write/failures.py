"""What went wrong while files were written, in calve's terms.

An error that crossed a Spark task is found by its encoded text; a store that is full or refuses is transient, since the
same batch succeeds when there is space or permission again; data that Spark cannot compute is terminal, since the same
rows fail every time, and so are executors without calve and a Spark that has stopped; whatever else stops a job (a lost
executor, say) is worth another try.
"""

import re

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from calve.catalog.hints import hint_for
from calve.errors import BadRow, CalveError, TerminalError, TransientError, decode

CAUGHT = (PySparkException, Py4JError, OSError, pa.ArrowException)
"""Everything that engines and stores raise; anything else is a mistake in calve itself."""

_FULL = ("No space left on device", "Disk quota exceeded", "File too large")
_REFUSED = (
    "Permission denied",
    "Read-only file system",
    "Operation not permitted",
    "Mkdirs failed to create",  # Hadoop does not say why
    "ACCESS_DENIED",
    "AccessDenied",
)
_MALFORMED = ("[CANNOT_PARSE_JSON_FIELD]", "[MALFORMED_RECORD_IN_PARSING", "[MALFORMED_CSV_RECORD]")
_FILE = ("[FAILED_READ_FILE",)
_DATA_EXCEPTION = "22"
"""Class of SQL states of values that cannot be computed."""
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"')
_OTHER_PYTHON = re.compile(r"\[PYTHON_VERSION_MISMATCH\][^\n]*")
_STOPPED = ("stopped SparkContext", "SparkContext was shut down", "SparkContext has been shutdown")
_INSTALL = "Executors need calve and its packages; docs/cluster.md says how they get them."
_MAX_DETAIL = 400


def failure_of(error: BaseException) -> CalveError:
    """The error to raise for one of `CAUGHT`."""
    text = str(error)
    found = decode(text) or executor_failure(text)
    if found is not None:
        return found
    if line := _line_with(text, _FULL):
        return TransientError(
            "the batch could not be written: no space is left",
            detail=line,
            hint="Free space in the table's store or in Spark's local directories; the batch is written again.",
        )
    if line := _line_with(text, _REFUSED):
        return TransientError(
            "the batch could not be written: the store refuses",
            detail=line,
            hint="Give this process permission to write to the table's data location; the batch is written again.",
        )
    if line := _line_with(text, _MALFORMED):
        return BadRow("a record cannot be read", detail=f"{_line_with(text, _FILE)} {line}".strip())
    if _is_data_exception(error):
        return BadRow("a value of the changes cannot be computed", detail=_first_line(text))
    said = _first_line(text) or type(error).__name__
    return TransientError("the batch could not be written", detail=said, hint=hint_for(error))


def executor_failure(text: str) -> CalveError | None:
    """The error of executors that lack what calve needs, or of a Spark that is gone; None for any other."""
    if module := _NO_MODULE.search(text):
        return TerminalError(f'Spark\'s executors cannot import the package "{module[1]}"', hint=_INSTALL)
    if program := _NO_PYTHON.search(text):
        return TerminalError(
            f'Spark\'s executors have no Python at "{program[1]}"',
            hint=f"Set PYSPARK_PYTHON, or spark.pyspark.python, to a Python that they have. {_INSTALL}",
        )
    if versions := _OTHER_PYTHON.search(text):
        return TerminalError("Spark's executors have another version of Python", detail=versions[0], hint=_INSTALL)
    if line := _line_with(text, _STOPPED):
        return TerminalError("Spark has stopped", detail=line, hint="Start the sink again: it goes on where it was.")
    return None


def _is_data_exception(error: BaseException) -> bool:
    if isinstance(error, pa.ArrowInvalid):
        return True
    state = error.getSqlState() if isinstance(error, PySparkException) else None
    return state is not None and state.startswith(_DATA_EXCEPTION)


def _line_with(text: str, signs: tuple[str, ...]) -> str:
    lines = (line for line in text.splitlines() if any(sign in line for sign in signs))
    return next(lines, "").strip()[:_MAX_DETAIL]


def _first_line(text: str) -> str:
    """The first line that says something; Py4J begins with where it was called."""
    lines = (line.strip() for line in text.splitlines() if not line.startswith("An error occurred while calling"))
    return next(filter(None, lines), "").removeprefix(": ")[:_MAX_DETAIL]
