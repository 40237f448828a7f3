"""A schema registry: schemas by their number, which never change, so that each is asked for once in a process."""

import json
from dataclasses import dataclass, field
from typing import Any

import requests

from calve.catalog.encryption import warn_of_open_login
from calve.errors import TransientError
from calve.source.documents import Malformed

TIMEOUT = (5.0, 20.0)
"""Seconds to connect, and between two parts of an answer."""
_NOT_FOUND = 404

_known: dict[tuple[str, int], Any] = {}


@dataclass(frozen=True)
class Registry:
    """Where schemas are had. Goes to tasks."""

    url: str
    login: tuple[str, str] | None = field(default=None, repr=False)

    def schema(self, number: int) -> Any:
        """The schema of a number, parsed, with those that it refers to. Raises Malformed where there is none."""
        place = (self.url, number)
        if place not in _known:
            body = self._asked(f"schemas/ids/{number}")
            if body is None:
                raise Malformed(f"the schema registry has no schema {number}")
            if body.get("schemaType", "AVRO") != "AVRO":
                raise Malformed(f"schema {number} is of type {body['schemaType']}, not AVRO")
            _known[place] = self._parsed(body)
        return _known[place]

    def subjects(self) -> list[str]:
        """All subjects: whether the registry answers. Raises TransientError."""
        return list(self._asked("subjects") or ())

    def _parsed(self, body: Any) -> Any:
        from fastavro.schema import parse_schema  # noqa: PLC0415 - an extra, see `avro`

        named: dict[str, Any] = {}
        self._refer(body, named)
        return parse_schema(json.loads(body["schema"]), named_schemas=named)

    def _refer(self, body: Any, named: dict[str, Any]) -> None:
        """Parse the schemas that one refers to, the innermost first."""
        from fastavro.schema import parse_schema  # noqa: PLC0415 - an extra, see `avro`

        for reference in body.get("references") or ():
            found = self._asked(f"subjects/{reference['subject']}/versions/{reference['version']}")
            if found is None:
                raise Malformed(f"the schema registry lacks {reference['subject']} that a schema refers to")
            self._refer(found, named)
            parse_schema(json.loads(found["schema"]), named_schemas=named)

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
                f"asking the schema registry at {self.url} failed",
                detail=f"{error}.",
                hint="Check its URL, USER and PASSWORD.",
            ) from error
