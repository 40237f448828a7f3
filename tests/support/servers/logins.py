"""Checks logins to a catalog: HTTP Basic, bearer tokens, AWS signatures. And a server that issues expiring tokens.

A signature is recomputed from the request with botocore, and compared.
"""

import base64
import hashlib
import hmac
import re
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs

from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.support.servers.listening import Answer, Listening, Request
from tests.support.servers.proxy import Check

_SIGNED = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/(?P<day>\d{8})/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request, ?"
    r"SignedHeaders=(?P<headers>[^,]+), ?Signature=(?P<signature>[0-9a-f]{64})"
)
MOST_SKEW = timedelta(minutes=15)
_UNSIGNED = frozenset({"UNSIGNED-PAYLOAD", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"})
_XML = "application/xml"


def basic(user: str, password: str) -> Check:
    """One user."""
    expected = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    return lambda request: None if request.header("Authorization") == expected else _refusal(401, "wrong login")


def bearer(valid: Callable[[str], bool]) -> Check:
    """Accepts valid tokens."""

    def check(request: Request) -> Answer | None:
        scheme, _, token = request.header("Authorization").partition(" ")
        return None if scheme == "Bearer" and valid(token) else _refusal(401, "no token, or one that is not valid")

    return check


@dataclass(frozen=True)
class Temporary:
    """Credentials that a role has for a while."""

    secret: str
    token: str
    end: datetime


@dataclass
class Signatures:
    """Requests signed with one pair of keys, for one region and service. Tests may change all of it."""

    key: str
    secret: str
    region: str
    service: str
    session_tokens: frozenset[str] = frozenset({""})
    """Those that go with the keys; the empty one stands for none."""
    expired: bool = False
    """Whether the credentials are of the past."""
    skew: timedelta = timedelta()
    """How far the clock of the server is ahead."""
    issued: dict[str, Temporary] = field(default_factory=dict)
    """By access key: others that are good as well."""

    def problem(self, request: Request) -> tuple[str, str] | None:
        """Code and text of what is wrong; None lets the request pass."""
        found = _SIGNED.fullmatch(request.header("Authorization"))
        if found is None:
            return "AccessDenied", "Missing Authentication Token"
        temporary = self.issued.get(found["key"])
        if found["key"] != self.key and temporary is None:
            return "InvalidAccessKeyId", "The access key id does not exist in our records."
        if temporary.end < datetime.now(UTC) if temporary else self.expired:
            return "ExpiredToken", "The provided token has expired."
        tokens = frozenset({temporary.token}) if temporary else self.session_tokens
        if request.header("X-Amz-Security-Token") not in tokens:
            return "InvalidToken", "The provided token is malformed or otherwise invalid."
        if (found["region"], found["service"]) != (self.region, self.service):
            detail = f"the region '{found['region']}' is wrong; expecting '{self.region}'"
            return "AuthorizationHeaderMalformed", f"The authorization header is malformed; {detail}"
        stamp = request.header("X-Amz-Date")
        then = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        if abs(datetime.now(UTC) + self.skew - then) > MOST_SKEW or not stamp.startswith(found["day"]):
            return "RequestTimeTooSkewed", "The difference between the request time and the current time is too large."
        if not self._right(request, found, temporary.secret if temporary else self.secret):
            return "SignatureDoesNotMatch", "The request signature we calculated does not match."
        return None

    def _right(self, request: Request, found: "re.Match[str]", secret: str) -> bool:
        digest = hashlib.sha256(request.body).hexdigest()
        stated = request.header("X-Amz-Content-SHA256")
        if stated and stated != digest and stated not in _UNSIGNED:
            return False
        again = AWSRequest(request.method, f"http://{request.header('Host')}{request.path}", data=request.body)
        for name in found["headers"].split(";"):
            again.headers[name] = request.header(name)
        again.context["timestamp"] = request.header("X-Amz-Date")
        kind = S3SigV4Auth if self.service == "s3" else SigV4Auth
        auth = kind(Credentials(found["key"], secret), found["service"], found["region"])
        auth.headers_to_sign = lambda signed: signed.headers  # those that the client signed, and no others
        auth.payload = lambda _: stated or digest
        computed = auth.signature(auth.string_to_sign(again, auth.canonical_request(again)), again)
        return hmac.compare_digest(computed, found["signature"])

    def in_json(self, request: Request) -> Answer | None:
        """The check of a catalog."""
        problem = self.problem(request)
        return _refusal(403, f"{problem[0]}: {problem[1]}") if problem else None

    def in_xml(self, request: Request) -> Answer | None:
        """The check of a store."""
        problem = self.problem(request)
        if problem is None:
            return None
        status = 400 if problem[0] in {"AuthorizationHeaderMalformed", "ExpiredToken", "InvalidToken"} else 403
        body = f"<Error><Code>{problem[0]}</Code><Message>{problem[1]}</Message></Error>"
        return Answer(status, f"<?xml version='1.0' encoding='UTF-8'?>{body}".encode(), {"Content-Type": _XML})


def _refusal(status: int, message: str) -> Answer:
    return Answer.of_json(status, {"error": {"message": message, "type": "NotAuthorizedException", "code": status}})


class TokenServer:
    """OAuth2 with client credentials: `POST` gives a token for one client, one scope, and so many seconds."""

    def __init__(self, client: str, secret: str, scope: str, seconds: float) -> None:
        self._client, self._secret, self._scope = client, secret, scope
        self.seconds = seconds
        self._issued: dict[str, float] = {}
        self._lock = threading.Lock()
        self._listening = Listening(self._handle)
        self.uri = f"{self._listening.uri}/oauth/token"

    @property
    def issued(self) -> int:
        """How many tokens were given."""
        return len(self._issued)

    def valid(self, token: str) -> bool:
        """Whether it was given here and has not expired."""
        with self._lock:
            return self._issued.get(token, 0.0) > time.monotonic()

    def revoke(self) -> None:
        """No token that was given until now is valid any more."""
        with self._lock:
            self._issued = dict.fromkeys(self._issued, 0.0)

    def _handle(self, request: Request) -> Answer:
        given = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        if given.get("grant_type") != "client_credentials":
            return _denied("unsupported_grant_type")
        if (given.get("client_id"), given.get("client_secret")) != (self._client, self._secret):
            return _denied("invalid_client", 401)
        if given.get("scope") != self._scope:
            return _denied("invalid_scope")
        token = secrets.token_urlsafe(24)
        with self._lock:
            self._issued[token] = time.monotonic() + self.seconds
        return Answer.of_json(200, {"access_token": token, "token_type": "bearer", "expires_in": int(self.seconds)})

    def stop(self) -> None:
        """Close the port."""
        self._listening.stop()


def _denied(error: str, status: int = 400) -> Answer:
    return Answer.of_json(status, {"error": error, "error_description": f"{error}: not from here"})
