"""AWS STS, only AssumeRole: signed with one pair of keys, it returns keys and a token that expire."""

import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs

from tests.support.servers.listening import Answer, Listening, Request
from tests.support.servers.logins import Signatures, Temporary

_GRANTED = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult>
<AssumedRoleUser><Arn>{role}/{session}</Arn><AssumedRoleId>AROA:{session}</AssumedRoleId></AssumedRoleUser>
<Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey>
<SessionToken>{token}</SessionToken><Expiration>{end:%Y-%m-%dT%H:%M:%SZ}</Expiration></Credentials>
</AssumeRoleResult></AssumeRoleResponse>"""
_REFUSED = "<ErrorResponse><Error><Type>Sender</Type><Code>{}</Code><Message>{}</Message></Error></ErrorResponse>"


@dataclass
class RoleServer:
    """Hands out credentials of `role` to `holder`, and tells `issued`, which a store or a catalog looks at."""

    holder: Signatures
    role: str
    told: timedelta
    """When they expire according to the response."""
    good: timedelta
    """When they actually expire. Clients renew a quarter of an hour before the time in the response."""
    issued: dict[str, Temporary] = field(default_factory=dict)
    sessions: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listening = Listening(self._handle)
        self.uri = self._listening.uri

    def _handle(self, request: Request) -> Answer:
        asked = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        problem = self.holder.problem(request)
        if problem is None and (asked.get("Action"), asked.get("RoleArn")) != ("AssumeRole", self.role):
            problem = "AccessDenied", f"not authorized to perform: sts:AssumeRole on resource: {asked.get('RoleArn')}"
        if problem is not None:
            return Answer(403, _REFUSED.format(*problem).encode(), {"Content-Type": "text/xml"})
        key, now = f"ASIA{secrets.token_hex(8).upper()}", datetime.now(UTC)
        found = Temporary(secrets.token_urlsafe(30), secrets.token_urlsafe(60), now + self.good)
        self.issued[key] = found
        self.sessions.append(asked["RoleSessionName"])
        names = {"role": self.role, "session": asked["RoleSessionName"], "key": key, "end": now + self.told}
        body = _GRANTED.format(**names, secret=found.secret, token=found.token)
        return Answer(200, body.encode(), {"Content-Type": "text/xml"})

    def stop(self) -> None:
        """Close the port."""
        self._listening.stop()
