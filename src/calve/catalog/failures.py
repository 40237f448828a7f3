"""Turns failures of catalogs and stores (errors of pyiceberg, SQL drivers, HTTP and filesystems) into calve's errors.

Classes and error numbers decide, never messages. `outcome.py` decides about the outcome of a failed commit.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

from pydantic_core import ValidationError
from pyiceberg.catalog.rest.response import ErrorResponse
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    BadRequestError,
    ForbiddenError,
    OAuthError,
    RESTError,
    TooManyRequestsError,
    UnauthorizedError,
    WaitingForLockException,
)
from pyiceberg.exceptions import ValidationError as MetadataError
from requests import HTTPError
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from calve.errors import InvalidInput, TransientError
from calve.storage.hints import hint_for, is_local


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
"""Raised by catalogs and stores that fail. HTTP failures of `requests` are OSErrors; a ValidationError is metadata that
cannot be parsed; Glue raises errors of botocore, Hive those of thrift."""

_REFUSED = (
    AuthorizationExpiredError,
    BadRequestError,
    ForbiddenError,
    OAuthError,
    TooManyRequestsError,
    UnauthorizedError,
    WaitingForLockException,
)
"""Responses of a catalog that did nothing."""

_MOST_TEXT = 600


@contextmanager
def trying(what: str) -> Iterator[None]:
    """Turn failures of the catalog or the store into a TransientError that says that `what` failed.

    A response with status 501 is one: pyiceberg raises NotImplementedError, as Arrow does for what it cannot do.
    """
    try:
        yield
    except FAILURES as error:
        raise transient(f"{what} failed", error) from error
    except NotImplementedError as error:
        if not is_relayed(error):
            raise
        raise transient(f"{what} failed", error) from error


@contextmanager
def loading(what: str) -> Iterator[None]:
    """As `trying`, but metadata that pyiceberg cannot parse is an InvalidInput: it will not be different next time.

    Of some types pyiceberg lets a TypeError through.
    """
    try:
        with trying(what):
            yield
    except (MetadataError, TypeError) as error:
        raise InvalidInput(
            f"{what} failed: its metadata is not supported",
            detail=text_of(error),
            hint="calve does not support columns of type variant, defaults of structs, and defaults of timestamps in "
            "nanoseconds.",
        ) from error


def is_refused(error: BaseException) -> bool:
    """Whether the catalog rejected the request, or a local filesystem failed: whatever the state of the table."""
    return isinstance(error, _REFUSED) or is_local(error)


def transient(primary: str, error: BaseException) -> TransientError:
    """A TransientError with its cause, and a hint for causes that a person can fix."""
    return TransientError(primary, detail=text_of(error), hint=hint_for(error))


def text_of(error: BaseException) -> str:
    """An error in one line, truncated."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    text = " ".join((problems_of(cause) if isinstance(cause, ValidationError) else str(cause)).split())
    return f"{type(cause).__name__}: {text[:_MOST_TEXT]}{'…' if len(text) > _MOST_TEXT else ''}"


def is_relayed(error: BaseException) -> bool:
    """Whether an error is the response to an HTTP request, which others than the catalog may have answered."""
    return isinstance(error.__cause__, HTTPError)


def is_told_by_catalog(error: BaseException) -> bool:
    """Whether the catalog itself explains an error. Proxies respond with 404, too, while the server is away."""
    response = error.__cause__.response if isinstance(error.__cause__, HTTPError) else None
    if response is None:
        return not is_relayed(error)
    try:
        ErrorResponse.model_validate_json(response.text)
    except ValidationError:
        return False
    return True


def problems_of(error: ValidationError) -> str:
    """What is wrong with a response. The error's own text quotes the response, which may contain credentials."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    places = ((".".join(map(str, one["loc"])), one["msg"]) for one in problems)
    return f"{error.title}: " + "; ".join(f"{place}: {what}" if place else what for place, what in places)
