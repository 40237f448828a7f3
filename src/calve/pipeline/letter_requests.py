"""The request of a replay of dead letters, a record of the sink's state location until the replay is finished."""

import json
from dataclasses import dataclass
from datetime import datetime

from calve.storage.state import StateStore

_REQUEST = "letters/request"


@dataclass(frozen=True)
class Request:
    """The letters of a replay that is not finished."""

    id: str
    generation: int
    until: datetime
    """When the last of them was added."""
    digests: frozenset[str]
    """Of their origins."""

    def to_bytes(self) -> bytes:
        """As a record of the state location."""
        body = {"format": 1, "id": self.id, "generation": self.generation, "until": self.until.isoformat()}
        return json.dumps(body | {"letters": sorted(self.digests)}).encode()

    @classmethod
    def parse(cls, data: bytes) -> "Request":
        """Inverse of `to_bytes`."""
        body = json.loads(data)
        until = datetime.fromisoformat(body["until"])
        return cls(body["id"], body["generation"], until, frozenset(body["letters"]))


class Requests:
    """The request of a sink. There is at most one."""

    def __init__(self, store: StateStore) -> None:
        self._store = store

    @property
    def current(self) -> Request | None:
        """The request that is not finished. Raises TransientError."""
        data = self._store.read(_REQUEST)
        return None if data is None else Request.parse(data)

    def put(self, request: Request) -> None:
        """Write the request. Raises TransientError."""
        self._store.put(_REQUEST, request.to_bytes())

    def remove(self) -> None:
        """Forget the request. Raises TransientError."""
        self._store.delete(_REQUEST)
