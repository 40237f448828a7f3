import errno
import sqlite3

import pytest
from sqlalchemy.exc import OperationalError

from calve.catalog.failures import trying
from calve.errors import TransientError


def sqlite_error(code: int) -> OperationalError:
    cause = sqlite3.OperationalError("what SQLite says")
    cause.sqlite_errorcode = code
    return OperationalError("UPDATE", {}, cause)


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (PermissionError(errno.EACCES, "denied"), "permission to write"),
        (OSError(errno.EROFS, "read-only"), "mount it for writing"),
        (OSError(errno.ENOSPC, "full"), "free some space"),
        (sqlite_error(sqlite3.SQLITE_FULL), "free some space"),
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
