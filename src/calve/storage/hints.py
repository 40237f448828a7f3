"""Hints: what a person can do about a failing catalog or store.

Stores report errors by a code, which pyarrow and botocore keep only in the texts of their errors. Codes choose hints
and nothing else: classes decide what is retried, in `catalog/failures.py`.
"""

import errno
import re
import sqlite3
from email.utils import parsedate_to_datetime

import requests
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    ForbiddenError,
    OAuthError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
    WaitingForLockException,
)

from calve.clock import SystemClock

_LOGIN = "The catalog does not accept the login: check USER and PASSWORD, CREDENTIAL or TOKEN of the connection."
_CLOCK = "The clock of this machine is wrong: set it."
_LATER = "A running sink retries by itself."
_NUMBERS = {
    errno.EACCES: f"Give this process permission to write there. {_LATER}",
    errno.EPERM: f"Give this process permission to write there. {_LATER}",
    errno.EROFS: f"The filesystem is read-only: mount it for writing. {_LATER}",
    errno.ENOSPC: f"The disk is full: free some space. {_LATER}",
    errno.ENOTDIR: "A file is where a folder is needed: remove it, or choose another folder.",
    errno.EDQUOT: f"The disk quota is used up: free some space. {_LATER}",
}
_SQLITE_ERRNO = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
}
_CLASSES: tuple[tuple[type[BaseException], str], ...] = (
    (OAuthError, "The token server refused the client: check CREDENTIAL (or USER and PASSWORD) and SCOPE."),
    (
        AuthorizationExpiredError,
        "The token has expired: give the connection a new TOKEN, or a CREDENTIAL to fetch one.",
    ),
    (UnauthorizedError, _LOGIN),
    (ForbiddenError, "The login is valid but not permitted to do this: check its rights, and the keys and REGION."),
    (TooManyRequestsError, f"The catalog asks for fewer requests. {_LATER}"),
    (ServiceUnavailableError, f"The catalog is not available. {_LATER}"),
    (ServerError, f"The catalog failed. {_LATER}"),
    (
        WaitingForLockException,
        f"Another process holds the lock on the table; the metastore expires abandoned locks. {_LATER}",
    ),
    (requests.ConnectTimeout, "Nothing answers at that address: check it, and the network."),
    (requests.Timeout, f"The request timed out. {_LATER}"),
    (requests.exceptions.SSLError, "The server's certificate cannot be verified: check the address."),
    (requests.ConnectionError, "Nothing answers at that address, or the connection broke: check it, and the network."),
)
_CODE = re.compile(r"AWS Error ([A-Z_]+)|ExceptionName: (\w+)|error occurred \((\w+)\)|: (\w+)(?=: )")
_CODES = {
    "ACCESSDENIED": "The store denies access to these credentials: check the keys and their permissions.",
    "AUTHORIZATIONHEADERMALFORMED": "The region is wrong: set REGION of the AWS connection.",
    "EXPIREDTOKEN": "The session token has expired: give the AWS connection new credentials.",
    "INVALIDACCESSKEYID": "The access key id is unknown: check ACCESS KEY ID of the AWS connection.",
    "INVALIDSIGNATURE": "The secret key is wrong: check SECRET ACCESS KEY of the AWS connection.",
    "INVALIDTOKEN": "The session token is invalid: check SESSION TOKEN of the AWS connection.",
    "NETWORKCONNECTION": "The store cannot be reached: check ENDPOINT of the AWS connection, and the network.",
    "NOSUCHBUCKET": "The bucket does not exist: create it, or correct the name.",
    "REQUESTEXPIRED": _CLOCK,
    "REQUESTTIMETOOSKEWED": _CLOCK,
    "SERVICEUNAVAILABLE": f"The store is not available. {_LATER}",
    "SIGNATUREDOESNOTMATCH": "The secret key is wrong: check SECRET ACCESS KEY of the AWS connection.",
    "SLOWDOWN": f"The store asks for fewer requests. {_LATER}",
    "THROTTLING": f"AWS asks for fewer requests. {_LATER}",
    "UNRECOGNIZEDCLIENT": "The access key id is unknown: check ACCESS KEY ID of the AWS connection.",
}
_NOT_ALLOWED = re.compile(r"\bMethodNotAllowed\b|\bHTTP status 405\b|\bMETHOD_NOT_ALLOWED\b")
_EXPIRED = ("Signature expired", "Signature not yet current", "Request has expired")
"""AWS's texts for signatures of another time, whose codes are less specific."""
_ASSUMING = "calling the AssumeRole operation"
"""botocore's text where AWS's token service refuses, not the store."""
_NAMES = {
    "EndpointConnectionError": "Nothing answers at that address: check it, and the network.",
    "NoCredentialsError": "Name an AWS CONNECTION with keys or a role.",
    "NoRegionError": "Set REGION of the AWS connection.",
    "TTransportException": "Nothing answers at that address, or the connection broke: check it, and the network.",
}
"""Errors of packages that may not be installed, by class name."""
_MOST_SKEW_SECONDS = 300


def hint_for(error: BaseException) -> str:
    """What to do about an error; empty where nothing is known."""
    number = error.errno if isinstance(error, OSError) else None
    wrapped = getattr(error, "orig", None)  # by SQLAlchemy, which takes long to import: processes beside do without it
    if isinstance(wrapped, sqlite3.Error):
        number = _SQLITE_ERRNO.get(getattr(wrapped, "sqlite_errorcode", 0) & 0xFF)
    if number in _NUMBERS:
        return _NUMBERS[number or 0]
    if any(words in str(error) for words in _EXPIRED):
        return _by_clock(error) or _CLOCK
    code = code_of(error)
    if code == "ACCESSDENIED" and _ASSUMING in str(error):
        return "These credentials may not assume the role: check ASSUME ROLE ARN, and the role's trust policy."
    return _CODES.get(code) or _by_clock(error) or _by_class(error)


def code_of(error: BaseException) -> str:
    """The store's error code, in capitals without separators; empty where it is unknown."""
    codes = (next(group for group in found.groups() if group) for found in _CODE.finditer(f": {error}"))
    return next((code for text in codes if (code := _plain(text)) in _CODES), "")


def is_refused(error: BaseException) -> bool:
    """Whether a store denied a request, and will until permissions change."""
    return (
        isinstance(error, PermissionError)
        or code_of(error) == "ACCESSDENIED"
        or _NOT_ALLOWED.search(str(error)) is not None
    )


def _plain(code: str) -> str:
    return code.replace("_", "").upper().removesuffix("EXCEPTION")


def is_local(error: BaseException) -> bool:
    """Whether a local filesystem failed: nothing was sent anywhere."""
    return isinstance(error, OSError) and error.errno in _NUMBERS


def _by_clock(error: BaseException) -> str:
    """A wrong clock may be why a login was refused: responses carry the time of the server."""
    response = error.__cause__.response if isinstance(error.__cause__, requests.HTTPError) else None
    if response is None or response.status_code not in {401, 403} or "Date" not in response.headers:
        return ""
    try:
        theirs = parsedate_to_datetime(response.headers["Date"]).timestamp()
    except ValueError:
        return ""
    skew = SystemClock().now_ms() / 1000 - theirs
    if abs(skew) < _MOST_SKEW_SECONDS:
        return ""
    return f"The clock of this machine is {abs(skew) / 60:.0f} minutes {'ahead' if skew > 0 else 'behind'}: set it."


def _by_class(error: BaseException) -> str:
    known = next((hint for kind, hint in _CLASSES if isinstance(error, kind)), "")
    return known or _NAMES.get(type(error).__name__, "")
