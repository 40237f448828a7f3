"""Requests of replays of dead letters: records of the sink's state location until the replay is finished.

Each has a name of its own: a run that lost its fence can neither replace nor remove the request of its successor.
"""

import json
from dataclasses import dataclass
from datetime import datetime

from calve.storage.state import StateStore

_FOLDER = "letters"


@dataclass(frozen=True)
class ReplayRequest:
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
    def parse(cls, data: bytes) -> "ReplayRequest":
        """Inverse of `to_bytes`."""
        body = json.loads(data)
        until = datetime.fromisoformat(body["until"])
        return cls(body["id"], body["generation"], until, frozenset(body["letters"]))


class Requests:
    """The requests of a sink."""

    def __init__(self, store: StateStore) -> None:
        self._store = store

    def unfinished(self) -> list[ReplayRequest]:
        """Requests of replays that were interrupted. Raises TransientError."""
        found = (self._store.read(name) for name in self._store.list(_FOLDER))
        return [ReplayRequest.parse(data) for data in found if data is not None]

    def put(self, request: ReplayRequest) -> None:
        """Write a request. Raises TransientError."""
        self._store.put(f"{_FOLDER}/{request.id}", request.to_bytes())

    def remove(self, request: ReplayRequest) -> None:
        """Forget a request. Raises TransientError."""
        self._store.delete(f"{_FOLDER}/{request.id}")
