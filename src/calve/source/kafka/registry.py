"""Schemas of a schema registry, and the header that precedes values whose schema it has: a zero byte and its id."""

import struct
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import requests

from calve.catalog.properties import warn_of_open_login
from calve.errors import TransientError
from calve.records.documents import Malformed

TIMEOUT = (5.0, 20.0)
"""Seconds to connect, and between two parts of a response."""
AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"
_NOT_FOUND = 404
_MAGIC = 0
_HEAD = struct.Struct(">bI")


@dataclass(frozen=True)
class RegistryEntry:
    """A schema as the registry has it, with the schemas that it refers to."""

    kind: str
    """AVRO, JSON or PROTOBUF."""
    text: str
    """For PROTOBUF a serialized descriptor in base64."""
    references: tuple[tuple[str, "RegistryEntry"], ...] = ()
    """With the names under which the schema refers to them."""
    version: int = 0


@dataclass(frozen=True)
class RegisteredSchema:
    """A version of a subject."""

    subject: str
    version: int
    kind: str
    """AVRO, JSON or PROTOBUF."""
    schema: Any
    """As `avro` or `protobuf` parsed it, with the schemas that it refers to; for JSON the text."""


@dataclass(frozen=True)
class RegistryClient:
    """A client of a schema registry. Goes to tasks."""

    url: str
    login: tuple[str, str] | None = field(default=None, repr=False)

    def entry(self, number: int, kind: str) -> RegistryEntry:
        """The schema with this id. Raises Malformed if there is none of this kind, and TransientError."""
        found = self._entry(f"schemas/ids/{number}", kind)
        if found is None:
            raise Malformed(f"the schema registry has no schema {number}")
        if found.kind != kind:
            raise Malformed(f"schema {number} is of type {found.kind}, not {kind}")
        return found

    def latest(self, subject: str) -> RegistryEntry | None:
        """The newest schema of a subject; None if the registry does not know it. Raises TransientError."""
        path = f"subjects/{quote(subject, safe='')}/versions/latest"
        found = self._entry(path, "")
        return self._entry(path, PROTOBUF) if found is not None and found.kind == PROTOBUF else found

    def subjects(self) -> list[str]:
        """All subjects, to check that the registry responds. Raises TransientError."""
        return list(self._asked("subjects") or ())

    def _entry(self, path: str, kind: str) -> RegistryEntry | None:
        # Text of Protobuf would need a compiler: Confluent's clients ask for descriptors as well.
        body = self._asked(f"{path}?format=serialized" if kind == PROTOBUF else path)
        if body is None:
            return None
        references = [
            (str(one["name"]), self._referred(str(one["subject"]), int(one["version"]), kind))
            for one in body.get("references") or ()
        ]
        return RegistryEntry(
            str(body.get("schemaType", AVRO)), str(body["schema"]), tuple(references), int(body.get("version", 0))
        )

    def _referred(self, subject: str, version: int, kind: str) -> RegistryEntry:
        found = self._entry(f"subjects/{quote(subject, safe='')}/versions/{version}", kind)
        if found is None:
            raise Malformed(f"the schema registry lacks {subject}, which a schema refers to")
        return found

    def _asked(self, path: str) -> Any:
        if self.login:
            warn_of_open_login(self.url, "the schema registry")
        try:
            answer = requests.get(f"{self.url.rstrip('/')}/{path}", auth=self.login, timeout=TIMEOUT)
            if answer.status_code == _NOT_FOUND:
                return None
            answer.raise_for_status()
            return answer.json()
        except (requests.RequestException, ValueError) as error:
            raise TransientError(
                f"a request to the schema registry at {self.url} failed",
                detail=f"{error}.",
                hint="Check its URL, USER and PASSWORD.",
            ) from error


def has_header(data: bytes) -> bool:
    """Whether a value may have the header; values without one may start with a zero byte as well."""
    return len(data) >= _HEAD.size and data[0] == _MAGIC


def split_header(data: bytes) -> tuple[int, bytes]:
    """The id of the schema, and what follows it."""
    return _HEAD.unpack_from(data)[1], data[_HEAD.size :]
