import errno
import sqlite3

import pyiceberg.exceptions as pyiceberg
import pytest
from sqlalchemy.exc import OperationalError

from calve.catalog.failures import committing, trying
from calve.errors import CommitConflict, CommitUnknown, TransientError


def sqlite_error(code: int) -> OperationalError:
    cause = sqlite3.OperationalError("what SQLite says")
    cause.sqlite_errorcode = code
    return OperationalError("UPDATE", {}, cause)


@pytest.mark.parametrize(
    "error",
    [
        pyiceberg.CommitFailedException("branch main has changed"),
        pyiceberg.NoSuchTableError("gone"),
        ValueError("Cannot add snapshot with sequence number 3 older than last sequence number 4"),
    ],
)
def test_a_commit_that_was_refused_is_a_conflict(error: Exception) -> None:
    with (
        pytest.raises(CommitConflict, match="the commit met another change of the table") as raised,
        committing("the commit"),
    ):
        raise error
    assert raised.value.__cause__ is error
    assert str(error) in raised.value.detail


@pytest.mark.parametrize(
    "error",
    [
        pyiceberg.CommitStateUnknownException("502"),
        pyiceberg.ServerError("500"),
        pyiceberg.ServiceUnavailableError("503"),
        pyiceberg.RESTError("what"),
        ConnectionResetError("peer"),
        TimeoutError("read timed out"),
        OSError("no number"),
        sqlite_error(sqlite3.SQLITE_BUSY),
        sqlite_error(sqlite3.SQLITE_IOERR),
    ],
)
def test_a_commit_whose_answer_may_be_lost_is_unknown(error: Exception) -> None:
    with pytest.raises(CommitUnknown, match="the answer to the commit was lost") as raised, committing("the commit"):
        raise error
    assert raised.value.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        pyiceberg.ForbiddenError("403"),
        pyiceberg.UnauthorizedError("401"),
        pyiceberg.BadRequestError("400"),
        pyiceberg.TooManyRequestsError("429"),
        pyiceberg.AuthorizationExpiredError("419"),
        PermissionError(errno.EACCES, "denied"),
        OSError(errno.ENOSPC, "full"),
    ],
)
def test_a_commit_that_was_not_sent_or_not_allowed_is_certainly_not_applied(error: Exception) -> None:
    with pytest.raises(TransientError, match="the commit failed") as raised, committing("the commit"):
        raise error
    assert type(raised.value) is TransientError


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (PermissionError(errno.EACCES, "denied"), "permission to write"),
        (OSError(errno.EROFS, "read-only"), "mount it for writing"),
        (OSError(errno.ENOSPC, "full"), "make room"),
        (sqlite_error(sqlite3.SQLITE_FULL), "make room"),
        (sqlite_error(sqlite3.SQLITE_READONLY), "read-only"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), ""),
    ],
)
def test_what_cannot_be_read_may_be_read_later_and_says_what_helps(error: Exception, hint: str) -> None:
    with pytest.raises(TransientError, match="loading failed") as raised, trying("loading"):
        raise error
    assert hint in raised.value.hint
    assert bool(hint) == bool(raised.value.hint)


def test_a_mistake_of_the_programme_stays_one() -> None:
    with pytest.raises(KeyError), trying("loading"):
        raise KeyError("x")
