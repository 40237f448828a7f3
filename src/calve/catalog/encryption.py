"""Logins that would cross a network in the open."""

import logging
from functools import lru_cache
from urllib.parse import urlsplit

from calve.catalog.guarded import is_loopback

_log = logging.getLogger("calve")


@lru_cache(maxsize=64)
def warn_of_open_login(uri: str, what: str) -> None:
    """Warn, once, of a login that is sent to `uri` without encryption; what stays on this machine is fine."""
    parts = urlsplit(uri)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        _log.warning("the login of %s is sent without encryption to %s: use https", what, parts.hostname)
