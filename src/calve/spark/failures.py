"""Classifies failures of Spark, Arrow, Parquet, codecs and filesystems: the one table.

    permanent in the input     UnreadableFile, BadRow, SourceLost: the same file or row fails every time
    permanent in the setup     TerminalError: somebody has to install, configure or start something
    transient                  TransientError: the same work succeeds when the store, the disk or an executor is back

`causes_of` lists the causes of a failure, from the raised exception to the innermost one. An exception of the JVM
arrives as a `Py4JJavaError` or as one of PySpark's own, with the Java object behind it: `getCause` gives its causes,
with Spark's condition, SQL state and message parameters if they have them. A failed Python task arrives as the text of
its traceback, and a remote task whose exception cannot be deserialized as a text with `Caused by:` lines; only these
two are parsed as text.

The rules of `_RULES` are tried in order, each against all causes: by class, by Spark's condition, by SQL state, by
`errno`. Messages are searched where Java offers nothing else: an `IOException` of the operating system has only its
message. A file that Spark fails to read is a permanent failure unless an earlier rule blames the store or the network:
codecs and formats throw anything, including `RuntimeException` and plain `IOException`.

A failure that no rule matches is transient: a stalled sink shows its cause and recovers by itself, a halted one does
not.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise
from traceback import walk_tb
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from calve.errors import BadRow, CalveError, SourceLost, TerminalError, TransientError, UnreadableFile, decode
from calve.model.change import MAY_BE_LETTER
from calve.spark.version import SparkFacts, facts_of_throwable
from calve.storage.hints import hint_for

_MOST = 20
"""Causes that are followed: chains may be circular."""
_MOST_LETTERS = 400
_PYTHON_FAILED = "org.apache.spark.api.python.PythonException"
_CAUSED_BY = re.compile(r"^\s*(?:Caused by: |: )(?P<name>[\w.$]+)(?:: (?P<message>.*))?$", re.MULTILINE)
_RAISED = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")
_SIGNED = re.compile(r"(?i)([?&;](?:[\w-]*(?:signature|token|credential|password|secret|key)[\w-]*)=)[^&\s;\"']+")


@dataclass(frozen=True)
class Cause:
    """One exception of a chain."""

    name: str
    """Its class; a Java class with its package."""
    message: str
    condition: str = ""
    """Spark's name for this kind of error, such as FAILED_READ_FILE.NO_HINT."""
    state: str = ""
    """The SQL state."""
    file: str = ""
    """The file that Spark was reading."""
    number: int | None = None
    """`errno`, for exceptions of Python."""
    kinds: tuple[str, ...] = ()
    """The class and its base classes, for exceptions of this process."""

    def __str__(self) -> str:
        text = _without_secrets(" ".join(self.message.split()))
        short = self.name.rpartition(".")[2]
        return (text if text.startswith(short) else f"{short}: {text}" if text else short)[:_MOST_LETTERS]


def causes_of(error: BaseException) -> tuple[Cause, ...]:
    """All causes, the outermost first."""
    return tuple(_walk(error))[:_MOST] or (_of_python(error),)


def text_of(error: BaseException) -> str:
    """The message of an exception. Py4J asks the JVM for it, which may be gone."""
    try:
        return str(error)
    except (Py4JError, OSError):
        return type(error).__name__


def plain_path(path: str) -> str:
    """A path without escapes and secrets: Spark reports local files as percent-encoded URIs."""
    parts = urlsplit(path)
    return unquote(parts.path) if parts.scheme == "file" else _without_secrets(path)


def _without_secrets(text: str) -> str:
    return _SIGNED.sub(r"\1***", _LOGIN.sub("***@", text))


def _walk(error: BaseException) -> Iterator[Cause]:
    java = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    if java is not None:
        try:
            yield from _of_java(java)
        except (Py4JError, OSError) as lost:  # the JVM is gone
            yield _of_python(lost)
        return
    if not isinstance(error, PySparkException):
        yield _of_python(error)
    yield from _of_text(text_of(error))


def _of_java(java: Any) -> Iterator[Cause]:
    for _ in range(_MOST):
        name, message = str(java.getClass().getName()), str(java.getMessage() or "")
        facts = facts_of_throwable(java)
        if name == _PYTHON_FAILED:
            yield from _of_text(message)
        else:
            yield _with_facts(name, message, facts)
        following = java.getCause()
        if following is None:
            yield from _of_text(message)  # of a task whose exception could not be deserialized
            return
        java = following


def _with_facts(name: str, message: str, facts: SparkFacts) -> Cause:
    return Cause(name, message, facts.condition, facts.state, facts.parameters.get("path", ""))


def _of_python(error: BaseException) -> Cause:
    if isinstance(error, ConnectionError) and _raised_by_py4j(error):  # nothing listens where the JVM was
        return Cause(Py4JNetworkError.__name__, text_of(error))
    number = error.errno if isinstance(error, OSError) else None
    kinds = tuple(kind.__name__ for kind in type(error).__mro__)
    return Cause(type(error).__name__, text_of(error), number=number, kinds=kinds)


def _raised_by_py4j(error: BaseException) -> bool:
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return bool(frames) and str(frames[-1].f_globals.get("__name__", "")).startswith("py4j.")


def _of_text(text: str) -> list[Cause]:
    """Causes in a text: `Caused by:` lines of Java; in a Python traceback the first one is the innermost."""
    java = [Cause(found["name"], found["message"] or "") for found in _CAUSED_BY.finditer(text)]
    lines = text.splitlines()
    raised = [
        Cause(found["name"].rpartition(".")[2], found["message"] or "")
        for before, line in pairwise(lines)
        if before.startswith("  ") and (found := _RAISED.match(line))
    ]
    return [*java, *reversed(raised)] if "Traceback (most recent call last)" in text else java


CAUGHT = (PySparkException, Py4JError, OSError, pa.ArrowException)
"""Everything that engines and stores raise; anything else is a bug in calve itself."""


class FailureKind(Enum):
    """What failed."""

    NO_PACKAGE = auto()
    NO_PYTHON = auto()
    OTHER_PYTHON = auto()
    SPARK_GONE = auto()
    DISK_FULL = auto()
    REFUSED = auto()
    NO_MEMORY = auto()
    OUT_OF_REACH = auto()
    FILE_GONE = auto()
    BAD_RECORD = auto()
    BAD_FILE = auto()
    BAD_VALUE = auto()
    BAD_PLAN = auto()
    BROKEN_TASK = auto()


@dataclass(frozen=True)
class _Rule:
    """Matches causes of one kind: those that have any of the listed properties."""

    kind: FailureKind
    names: tuple[str, ...] = ()
    """Classes, or Java packages if they end with a dot."""
    conditions: tuple[str, ...] = ()
    """Prefixes of Spark's conditions."""
    states: tuple[str, ...] = ()
    """Prefixes of SQL states."""
    numbers: tuple[int, ...] = ()
    """`errno`; in messages of Java and in tracebacks the text for it."""
    words: tuple[str, ...] = ()

    def first(self, causes: Sequence[Cause]) -> Cause | None:
        """The innermost cause that this matches."""
        return next((c for c in reversed(causes) if self._holds(c, last=c is causes[-1])), None)

    def _holds(self, cause: Cause, *, last: bool) -> bool:
        if any(_is_of(cause, name) for name in self.names) or cause.number in self.numbers:
            return True
        if cause.condition.startswith(self.conditions or ("-",)) or cause.state.startswith(self.states or ("-",)):
            return True
        if (
            (cause.condition and cause.condition != _GONE_OR_REFUSED)
            or (_is_of(cause, "org.apache.spark.") and not last)
            or _is_of(cause, "ValueError")
        ):
            return False  # its message may quote the user's data
        message = cause.message
        return any(word in message for word in self.words) or any(
            os.strerror(number) in message for number in self.numbers
        )


def _is_of(cause: Cause, name: str) -> bool:
    if name.endswith("."):
        return cause.name.startswith(name)
    return name in (cause.name, cause.name.rpartition(".")[2], *cause.kinds)


_GONE_OR_REFUSED = "_LEGACY_ERROR_TEMP_2055"
"""Of Spark 3.5, where only the message distinguishes a missing file from an unreadable one."""
_FAILED_READ = (
    "FAILED_READ_FILE",
    "CANNOT_READ_FILE_FOOTER",
    "_LEGACY_ERROR_TEMP_2063",  # this and the next ones: Spark 3.5
    "_LEGACY_ERROR_TEMP_2064",
    "_LEGACY_ERROR_TEMP_2093",
)
_DAMAGED_INPUT = (
    *("is not a Parquet file", "Malformed ORC file", "FAILED_TO_UNCOMPRESS"),
    *("Unexpected end of input stream", "Unexpected end of block in input stream", "not a gzip file", "stored gzip "),
    *("incorrect header check", "incorrect data check", "invalid block type", "invalid stored block lengths"),
    *("invalid distance", "invalid literal/length", "invalid code lengths", "invalid bit length"),
    *("Stream is not BZip2 formatted", "bad block header", "crc error"),
)
"""Messages of formats and codecs. Spark 3.5 passes many of them on unchanged."""
_DAMAGED_FILE = re.compile(r"^(?P<parquet>.+) is not a Parquet file|^Malformed ORC file (?P<orc>.+)\. ")
_RULES = (
    _Rule(FailureKind.NO_PACKAGE, names=("ModuleNotFoundError", "ImportError"), words=("No module named '",)),
    _Rule(FailureKind.NO_PYTHON, words=('Cannot run program "',)),
    _Rule(FailureKind.OTHER_PYTHON, words=("[PYTHON_VERSION_MISMATCH]",)),
    _Rule(
        FailureKind.SPARK_GONE,
        names=("Py4JNetworkError", "Py4JAuthenticationError"),
        words=("stopped SparkContext", "SparkContext was shut down", "SparkContext has been shutdown"),
    ),
    _Rule(FailureKind.DISK_FULL, numbers=(errno.ENOSPC, errno.EDQUOT, errno.EFBIG)),
    _Rule(
        FailureKind.REFUSED,
        names=("AccessControlException", "AccessDeniedException"),
        numbers=(errno.EACCES, errno.EPERM, errno.EROFS),
        words=("Mkdirs failed to create", "ACCESS_DENIED", "AccessDenied"),  # Hadoop, which gives no reason; S3
    ),
    _Rule(
        FailureKind.NO_MEMORY,
        names=("OutOfMemoryError", "SparkOutOfMemoryError", "MemoryError", "ArrowMemoryError"),
        conditions=("UNABLE_TO_ACQUIRE_MEMORY",),
        numbers=(errno.ENOMEM,),
    ),
    _Rule(
        FailureKind.FILE_GONE,
        names=("SparkFileNotFoundException",),
        conditions=("FAILED_READ_FILE.FILE_NOT_EXIST", "PATH_NOT_FOUND", _GONE_OR_REFUSED),
    ),
    _Rule(
        FailureKind.OUT_OF_REACH,
        names=(
            *("ConnectException", "SocketException", "SocketTimeoutException", "UnknownHostException"),
            *("NoRouteToHostException", "InterruptedIOException", "ClosedByInterruptException", "TimeoutException"),
            *("BlockMissingException", "FetchFailedException", "ConnectionError", "TimeoutError"),
            *("javax.net.", "com.amazonaws.", "software.amazon.", "org.apache.http.", "org.apache.hadoop.fs.s3a."),
            *("org.apache.hadoop.ipc.", "org.apache.hadoop.net.", "org.apache.hadoop.hdfs.", "io.netty."),
            *("com.google.cloud.", "com.microsoft.azure.", "com.azure."),
        ),
        numbers=(
            *(errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ECONNRESET, errno.ECONNREFUSED),
            *(errno.EPIPE, errno.ETIMEDOUT, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENOTCONN, errno.ESHUTDOWN),
        ),
    ),
    _Rule(
        FailureKind.BAD_RECORD,
        names=("BadRecordException",),
        conditions=("CANNOT_PARSE_JSON_FIELD", "MALFORMED_RECORD_IN_PARSING", "MALFORMED_CSV_RECORD"),
    ),
    _Rule(
        FailureKind.BAD_FILE,
        names=("FileFormatException", "ParquetDecodingException", "ZipException", "DataFormatException"),
        conditions=_FAILED_READ,
        words=_DAMAGED_INPUT,
    ),
    _Rule(FailureKind.BAD_VALUE, names=("ArrowInvalid",), states=("22",)),
    _Rule(FailureKind.BAD_PLAN, names=("AnalysisException", "ParseException", "ExtendedAnalysisException")),
    _Rule(
        FailureKind.BROKEN_TASK,
        names=(
            *("RecursionError", "ValueError", "TypeError", "LookupError", "KeyError", "IndexError", "AttributeError"),
            *("UnicodeDecodeError", "UnicodeEncodeError", "OverflowError", "ZeroDivisionError", "AssertionError"),
            *("NotImplementedError", "ArrowNotImplementedError", "ArrowTypeError", "ArrowKeyError", "ArrowIndexError"),
        ),
    ),
)

_INSTALL = "Executors need calve and its dependencies: see docs/cluster.md."
_AGAIN = "Start the sink again: it resumes where it stopped."
_REPAIR = (
    "Repair or remove the file, and start the sink again. "
    "With ON BAD ROW = 'dead letter' such a file becomes a dead letter, and the sink continues without it."
)
_ASIDE = "With ON BAD ROW = 'dead letter' the sink writes such records to a table of their own, and continues."
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
_NO_PROGRAM = re.compile(r'Cannot run program "([^"]+)"')
_VERSIONS = re.compile(r"\[PYTHON_VERSION_MISMATCH\][^\n]*")


@dataclass(frozen=True)
class _Failure:
    """A classified exception."""

    error: BaseException
    primary: str
    causes: tuple[Cause, ...]
    met: Cause | None
    """The cause that a rule matched."""

    @property
    def file(self) -> str:
        """The file that Spark was reading, as Spark names it."""
        named = next((cause.file for cause in reversed(self.causes) if cause.file), "")
        if named or self.met is None:
            return named
        match = _DAMAGED_FILE.match(self.met.message)
        return (match["parquet"] or match["orc"]) if match else ""

    @property
    def innermost(self) -> Cause:
        return next((cause for cause in reversed(self.causes) if cause.message), self.causes[-1])

    def detail(self, cause: Cause | None = None) -> str:
        text = str(cause or self.innermost)
        where = plain_path(self.file)
        return f'"{where}": {text}' if where and where not in text else text


def failure_of(error: BaseException, primary: str) -> CalveError:
    """The error to raise for one of `CAUGHT`; `primary` says what could not be done, if nothing better is known."""
    causes = causes_of(error)
    if own := _own_error(error, causes):
        return own
    for rule in _RULES:
        met = rule.first(causes)
        if met is not None:
            return _ERRORS[rule.kind](_Failure(error, primary, causes, met))
    failure = _Failure(error, primary, causes, None)
    return TransientError(primary, detail=failure.detail(), hint=hint_for(error))


def _own_error(error: BaseException, causes: Sequence[Cause]) -> CalveError | None:
    """The error that a task or an expression of calve raised; None where Spark itself failed.

    Messages of Spark quote values of the user, which may contain anything, so they are not decoded.
    """
    if any(cause.condition and not cause.condition.startswith(_CARRIERS) for cause in causes):
        return None
    for text in (text_of(error), *(cause.message for cause in causes)):
        if own := decode(text):
            return own.build(own.primary, own.detail, f"{own.hint} {_ASIDE}".strip()) if MAY_BE_LETTER in text else own
    return None


_CARRIERS = (
    *("USER_RAISED_EXCEPTION", "_LEGACY_ERROR_USER_RAISED_EXCEPTION"),  # the function `raise_error`
    *("STREAM_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR", "PYTHON_EXCEPTION"),
)
"""Spark's conditions for errors that others raised."""


@contextmanager
def told_as(primary: str) -> Iterator[None]:
    """Raise failures of Spark and of stores in the block as errors of calve."""
    try:
        yield
    except CAUGHT as error:
        raise failure_of(error, primary) from error


def own_file_failure(error: OSError | pa.ArrowException, primary: str, file: str = "", *, hint: str = "") -> CalveError:
    """The error for a file of the table or of the state that this process failed to read or write.

    Arrow raises an `ArrowInvalid`, or an `OSError` without a number, for damaged contents; an unreachable store raises
    the latter, too, so messages decide.
    """
    text = str(causes_of(error)[0])
    detail = f'"{file}": {text}' if file else text
    damaged = isinstance(error, pa.ArrowInvalid | pa.ArrowNotImplementedError | pa.ArrowTypeError)
    words = isinstance(error, OSError) and error.errno is None and any(word in str(error) for word in _DAMAGED)
    if damaged or words:
        return TerminalError(
            primary.replace("could not be", "cannot be"),
            detail=detail,
            hint="The file is damaged: restore it, or roll the table back to a snapshot without it.",
        )
    return TransientError(primary, detail=detail, hint=hint_for(error) or hint)


_DAMAGED = ("deserialize thrift", "Corrupt", "corrupt", "Unexpected end of stream", "Invalid Parquet", "magic bytes")
"""Arrow's messages for a damaged Parquet file."""


def executor_failure(error: BaseException) -> CalveError | None:
    """The error for executors that lack what calve needs, or for a stopped Spark; None for any other."""
    found = failure_of(error, "")
    return None if isinstance(found, TransientError | BadRow | SourceLost) else found


# ---- the errors


def _no_package(failure: _Failure) -> CalveError:
    named = _NO_MODULE.search(_messages_of(failure))
    if named is None:
        primary = "Spark's executors cannot import what calve needs"
        return TerminalError(primary, detail=failure.detail(failure.met), hint=_INSTALL)
    return TerminalError(f'Spark\'s executors cannot import the package "{named[1]}"', hint=_INSTALL)


def _no_python(failure: _Failure) -> CalveError:
    named = _NO_PROGRAM.search(_messages_of(failure))
    return TerminalError(
        f'Spark\'s executors have no Python at "{named[1] if named else ""}"',
        hint=f"Set PYSPARK_PYTHON or spark.pyspark.python to a Python that they have. {_INSTALL}",
    )


def _other_python(failure: _Failure) -> CalveError:
    named = _VERSIONS.search(_messages_of(failure))
    detail = named[0] if named else failure.detail(failure.met)
    return TerminalError("Spark's executors have another version of Python", detail=detail, hint=_INSTALL)


def _spark_gone(failure: _Failure) -> CalveError:
    return TerminalError("Spark has stopped", detail=failure.detail(failure.met), hint=_AGAIN)


def _disk_full(failure: _Failure) -> CalveError:
    return TransientError(
        f"{failure.primary}: no space is left",
        detail=failure.detail(failure.met),
        hint="Free space in the table's store or in Spark's local directories; calve retries.",
    )


def _refused(failure: _Failure) -> CalveError:
    reads = failure.file or (failure.met and failure.met.condition == _GONE_OR_REFUSED)
    to_do = "read it" if reads else "write to the table's data location"
    return TransientError(
        f"{failure.primary}: the store denied access",
        detail=failure.detail(failure.met),
        hint=hint_of_code(failure) or f"Give this process permission to {to_do}; calve retries.",
    )


def hint_of_code(failure: _Failure) -> str:
    """The hint for a store's error code; not for numbers of the operating system, whose hints are about writing."""
    number = failure.error.errno if isinstance(failure.error, OSError) else None
    return "" if number is not None else hint_for(failure.error)


def _no_memory(failure: _Failure) -> CalveError:
    return TransientError(
        f"{failure.primary}: out of memory",
        detail=failure.detail(failure.met),
        hint="Give Spark more memory (spark.driver.memory, spark.executor.memory), or read less per checkpoint.",
    )


def _out_of_reach(failure: _Failure) -> CalveError:
    return TransientError(failure.primary, detail=failure.detail(failure.met), hint=hint_for(failure.error))


def _file_gone(failure: _Failure) -> CalveError:
    return SourceLost(
        "a file was removed before it was read",
        detail=plain_path(failure.file) or failure.detail(),
        hint="Restore it, or start the sink again to continue with the files that are left.",
    )


def _bad_record(failure: _Failure) -> CalveError:
    return BadRow(
        "a record cannot be read",
        detail=failure.detail(failure.met),
        hint="Correct or remove it. All lines of a CSV file have as many values as its first one.",
    )


def _bad_file(failure: _Failure) -> CalveError:
    hint = next((hint for holds, hint in _REPAIRS if holds(failure.causes)), _REPAIR)
    return UnreadableFile("a file of the input cannot be read", detail=failure.detail(), hint=hint, file=failure.file)


def _bad_value(failure: _Failure) -> CalveError:
    return BadRow("a value of the changes cannot be computed", detail=failure.detail(failure.met))


def _bad_plan(failure: _Failure) -> CalveError:
    return TerminalError(
        "the input does not have the declared columns",
        detail=failure.detail(failure.met),
        hint="Compare the definition of the source with its files.",
    )


def _broken_task(failure: _Failure) -> CalveError:
    return TerminalError(
        failure.primary.replace("could not be", "cannot be"),
        detail=f"A task failed with {failure.met}",
        hint="The same rows fail every time. The traceback is in Spark's log.",
    )


def _messages_of(failure: _Failure) -> str:
    return "\n".join((text_of(failure.error), *(cause.message for cause in failure.causes)))


_ERRORS: dict[FailureKind, Callable[[_Failure], CalveError]] = {
    FailureKind.NO_PACKAGE: _no_package,
    FailureKind.NO_PYTHON: _no_python,
    FailureKind.OTHER_PYTHON: _other_python,
    FailureKind.SPARK_GONE: _spark_gone,
    FailureKind.DISK_FULL: _disk_full,
    FailureKind.REFUSED: _refused,
    FailureKind.NO_MEMORY: _no_memory,
    FailureKind.OUT_OF_REACH: _out_of_reach,
    FailureKind.FILE_GONE: _file_gone,
    FailureKind.BAD_RECORD: _bad_record,
    FailureKind.BAD_FILE: _bad_file,
    FailureKind.BAD_VALUE: _bad_value,
    FailureKind.BAD_PLAN: _bad_plan,
    FailureKind.BROKEN_TASK: _broken_task,
}


def _any_name(*names: str) -> Callable[[Sequence[Cause]], bool]:
    return lambda causes: any(_is_of(cause, name) for cause in causes for name in names)


_REPAIRS: tuple[tuple[Callable[[Sequence[Cause]], bool], str], ...] = (
    (
        _any_name("SchemaColumnConvertNotSupportedException"),
        "Declare the column with the type that the file has, or rewrite the file with the declared type.",
    ),
    (
        lambda causes: any(cause.condition == "_LEGACY_ERROR_TEMP_2093" for cause in causes),
        "Names of columns must differ in more than their case: rewrite the file, or set spark.sql.caseSensitive.",
    ),
    (_any_name("URISyntaxException"), "Spark cannot read a file with a colon in its name: rename it."),
)
"""Hints for files that other readers may be able to read."""
