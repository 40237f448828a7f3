"""Every error calve raises, as one tree. The class says what to do next.

    CalveError
    ├── TransientError          retry: nothing is wrong with the data or the definition
    │   ├── CommitConflict      another writer committed first; reload the table
    │   └── CommitUnknown       the response was lost; the commit may or may not have been applied
    ├── TerminalError           the sink halts until a person acts
    │   ├── BadRow              a record cannot be converted to a change
    │   ├── UnreadableFile      an input file cannot be read, however often it is retried
    │   ├── KeyViolation        two rows have the same key, and their order does not decide which is the latest
    │   ├── LateRow             a row is older than the closed frontier
    │   ├── ForeignCommit       another writer changed the table's rows
    │   ├── TableRolledBack     the table no longer contains a commit of this sink
    │   ├── TableRecreated      the table is not the one that this sink wrote to
    │   ├── ProgressUnprovable  the table does not show this sink's progress
    │   ├── CheckpointGap       recorded work is missing and cannot be read again
    │   └── SourceLost          the source cannot continue from the recorded offsets
    ├── SourceChanged           the columns of the source changed; start the sink again, with the new ones
    ├── FencedError             a newer run of this sink owns the table; exit quietly with code 3
    └── InvalidInput            the user's definition or call is wrong; nothing was started

An error has a primary text (what happened), a detail (the values) and a hint (what to do). Past tense if the same
call may succeed later, present tense if it is permanent. Errors survive pickle and, as text, a Spark task: `encode`
and `decode` carry them through the message of a Spark exception.
"""

import json
from typing import ClassVar, Self

_OPEN, _CLOSE = "⟦calve:", "⟧"


def writable(text: str) -> str:
    """Escape lone surrogates, which no codec accepts, so that any file, table or terminal takes the text.

    They come from escapes in JSON and from file names that are not UTF-8.
    """
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


class CalveError(Exception):
    """Base of all errors: primary, detail and hint."""

    exit_code: ClassVar[int] = 1

    def __init__(self, primary: str, *, detail: str = "", hint: str = "") -> None:
        self.primary = writable(primary)
        self.detail = writable(detail)
        self.hint = writable(hint)
        super().__init__(self.primary)

    def __str__(self) -> str:
        lines = [self.primary]
        if self.detail:
            lines.append(f"  {self.detail}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.primary, self.detail, self.hint)

    def encode(self) -> str:
        """Serialize this error to text that `decode` finds inside any longer message."""
        body = json.dumps([type(self).__name__, self.primary, self.detail, self.hint])
        return f"{_OPEN}{body}{_CLOSE}"

    @classmethod
    def build(cls, primary: str, detail: str, hint: str) -> Self:
        """Build an error of this class from its three texts."""
        return cls(primary, detail=detail, hint=hint)


def _rebuild(cls: type[CalveError], primary: str, detail: str, hint: str) -> CalveError:
    return cls.build(primary, detail, hint)


class TransientError(CalveError):
    """May succeed when retried."""


class CommitConflict(TransientError):
    """The table changed between load and commit; this attempt was certainly not applied."""


class CommitUnknown(TransientError):
    """The response to a commit was lost: only the table shows whether it was applied."""


class TerminalError(CalveError):
    """The sink halts; a retry cannot help."""


class BadRow(TerminalError):
    """A record cannot be converted to a change."""


class UnreadableFile(TerminalError):
    """An input file cannot be read. `file` is Spark's name of it; it is lost when the error crosses a task as text."""

    def __init__(self, primary: str, *, detail: str = "", hint: str = "", file: str = "") -> None:
        super().__init__(primary, detail=detail, hint=hint)
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_file, (self.primary, self.detail, self.hint, self.file)


def _rebuild_file(primary: str, detail: str, hint: str, file: str) -> UnreadableFile:
    return UnreadableFile(primary, detail=detail, hint=hint, file=file)


class KeyViolation(TerminalError):
    """Different rows have the same key and the same order."""


class LateRow(TerminalError):
    """A row is older than the closed frontier."""


class ForeignCommit(TerminalError):
    """Another writer changed the rows of the table."""


class TableRolledBack(TerminalError):
    """The table was rolled back to a state before a commit of this sink."""


class TableRecreated(TerminalError):
    """The table's UUID differs from that of the table this sink wrote to."""


class ProgressUnprovable(TerminalError):
    """The table's history does not show this sink's progress."""


class CheckpointGap(TerminalError):
    """Work is missing between the table's progress and the records."""


class SourceLost(TerminalError):
    """The source cannot continue from where the records end."""


class SourceChanged(CalveError):
    """The columns of the source changed. Everything before the change was read; a new start finds the new columns."""


class FencedError(CalveError):
    """A newer run of the same sink owns the table."""

    exit_code = 3


class InvalidInput(CalveError):
    """A definition, option or call that cannot work."""

    exit_code = 2


def _tree(cls: type[CalveError]) -> dict[str, type[CalveError]]:
    found = {cls.__name__: cls}
    for child in cls.__subclasses__():
        found |= _tree(child)
    return found


def decode(text: str) -> CalveError | None:
    """The first encoded error inside a message, or None."""
    start = text.find(_OPEN)
    end = text.find(_CLOSE, start)
    if start < 0 or end < 0:
        return None
    try:
        body = json.loads(text[start + len(_OPEN) : end])
    except (ValueError, RecursionError):
        return None
    match body:
        case [str(name), str(primary), str(detail), str(hint)]:
            cls = _tree(CalveError).get(name)
            return None if cls is None else cls.build(primary, detail, hint)
    return None  # not encoded by calve
