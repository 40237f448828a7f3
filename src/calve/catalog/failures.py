"""What a failing catalog or store means: the errors of pyiceberg, SQL drivers, HTTP and filesystems as calve's own.

Classes and error numbers decide, never texts. Whatever is not known to be harmless after a commit was sent counts as
unknown: the table alone tells then whether it was applied.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

from pydantic_core import ValidationError
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    OAuthError,
    RESTError,
    TooManyRequestsError,
    UnauthorizedError,
    WaitingForLockException,
)
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from calve.catalog.hints import hint_for, is_local
from calve.errors import CommitConflict, CommitUnknown, TransientError


def _of_extra(module: str, *names: str) -> tuple[type[Exception], ...]:
    """Errors of a package that may not be installed."""
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError:
        return ()
    return tuple(getattr(found, name) for name in names)


FAILURES: tuple[type[Exception], ...] = (
    *(OSError, SQLAlchemyError, RESTError, WaitingForLockException, ValidationError),
    *_of_extra("botocore.exceptions", "BotoCoreError", "ClientError"),
    *_of_extra("thrift.Thrift", "TException"),
)
"""What a catalog or a store raises when it cannot answer. HTTP failures of `requests` are OSErrors; a ValidationError
is metadata that cannot be parsed; Glue speaks through botocore, Hive through thrift."""

_REFUSED = (
    AuthorizationExpiredError,
    BadRequestError,
    ForbiddenError,
    OAuthError,
    TooManyRequestsError,
    UnauthorizedError,
    WaitingForLockException,
)
"""Answers of a catalog that did nothing."""

_MOST_TEXT = 600


@contextmanager
def trying(what: str) -> Iterator[None]:
    """Turn failures of the catalog or the store into a TransientError that says that `what` failed."""
    try:
        yield
    except FAILURES as error:
        raise transient(f"{what} failed", error) from error


@contextmanager
def committing(what: str) -> Iterator[None]:
    """Turn failures of a catalog commit into CommitConflict, CommitUnknown or TransientError."""
    try:
        yield
    except (CommitFailedException, NoSuchTableError, NoSuchNamespaceError, ValueError) as error:
        # ValueError: an update that does not fit the table any more, found before anything was sent.
        raise CommitConflict(f"{what} met another change of the table", detail=_text(error)) from error
    except CommitStateUnknownException as error:
        raise _unknown(what, error) from error
    except FAILURES as error:
        if isinstance(error, _REFUSED) or is_local(error):
            raise transient(f"{what} failed", error) from error
        raise _unknown(what, error) from error


def transient(primary: str, error: BaseException) -> TransientError:
    """A TransientError that names its cause, with a hint for causes that a person can take away."""
    return TransientError(primary, detail=_text(error), hint=hint_for(error))


def _unknown(what: str, error: BaseException) -> CommitUnknown:
    return CommitUnknown(f"the answer to {what} was lost", detail=_text(error), hint=hint_for(error))


def _text(error: BaseException) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    text = " ".join(str(cause).split())
    return f"{type(cause).__name__}: {text[:_MOST_TEXT]}{'…' if len(text) > _MOST_TEXT else ''}"
