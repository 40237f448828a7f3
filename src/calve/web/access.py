"""Who may see the page (pure).

On a loopback address everybody on the machine may, unless there is a token. Without one, requests for another host name
are refused, so that a web page elsewhere cannot read it by pointing its own name to this machine; with one, such a page
has neither the token nor the cookie, and a proxy may serve the page under its own name. On any other address a token is
required: as a bearer, or once in a form or link, which sets a cookie. The cookie is derived from the token and does not
contain it.
"""

import hashlib
import hmac
import ipaddress
from dataclasses import dataclass, field

from calve.errors import InvalidInput

COOKIE = "calve_page"
LEAST_TOKEN = 16
_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""Host names of requests to a loopback address."""


@dataclass(frozen=True)
class PageAccess:
    """The address, and the token that requests need; without one they need none."""

    host: str
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.token is None and not self.loopback:
            raise InvalidInput(
                "the page needs a token on an address that other machines reach",
                detail=f"Got --host {self.host} without --token.",
                hint="Set CALVE_TOKEN to a long random text, or leave out --host to serve this machine only.",
            )
        if self.token is not None and (len(self.token) < LEAST_TOKEN or not self.token.isascii()):
            raise InvalidInput(
                "the token is too weak",
                detail=f"It has {len(self.token)} characters.",
                hint=f"Use at least {LEAST_TOKEN} random ASCII characters.",
            )

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def is_host(self, header: str) -> bool:
        """Whether a request may be for this host: without a token it has to name this machine."""
        if self.token is not None:
            return True
        name = header.strip().lower()
        if name.rpartition(":")[2].isdecimal():
            name = name.rpartition(":")[0]
        return name in _NAMES or name == self.host

    @property
    def cookie(self) -> str:
        """The value of the cookie that stands for the token."""
        return hmac.new((self.token or "").encode(), b"calve page", hashlib.sha256).hexdigest()

    def is_token(self, given: str) -> bool:
        """Compare a token, in a time that does not depend on how much of it is right."""
        return self.token is None or hmac.compare_digest(given.encode(), self.token.encode())

    def admits(self, authorization: str, cookie: str) -> bool:
        """Whether a request with these headers may see anything."""
        if self.token is None:
            return True
        scheme, _, credential = authorization.partition(" ")
        if scheme.lower() == "bearer" and self.is_token(credential.strip()):
            return True
        return hmac.compare_digest(cookie.encode(), self.cookie.encode())
