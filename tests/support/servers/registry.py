"""A schema registry in this process: schemas by id, behind a login. It responds like Confluent's."""

import io
import json
import struct
from typing import Any

import fastavro

from tests.support.servers.listening import Answer, Listening, Request
from tests.support.servers.logins import basic

USER, PASSWORD = "calve", "wolfram-registry-password"


class SchemaRegistry:
    """Schemas get their numbers in order."""

    def __init__(self) -> None:
        self._schemas: list[Any] = []
        self._subjects: dict[str, dict[str, Any]] = {}
        self._check = basic(USER, PASSWORD)
        self.asked: list[str] = []
        self._server = Listening(self._answer)
        self.uri = self._server.uri

    def stop(self) -> None:
        """Close the port."""
        self._server.stop()

    def add(self, schema: Any) -> int:
        """The number of a new schema."""
        self._schemas.append(schema)
        return len(self._schemas)

    def register(self, subject: str, schema: Any, kind: str = "AVRO") -> int:
        """The number of a new schema that is the newest of a subject."""
        number = self.add(schema)
        version = self._subjects.get(subject, {}).get("version", 0) + 1
        body = {"subject": subject, "version": version, "id": number, "schema": json.dumps(schema)}
        self._subjects[subject] = body | ({} if kind == "AVRO" else {"schemaType": kind})
        return number

    def encoded(self, number: int, value: Any) -> bytes:
        """A value as producers send it: a zero byte, the number of its schema, the value itself."""
        out = io.BytesIO(struct.pack(">bI", 0, number))
        out.seek(0, io.SEEK_END)
        fastavro.schemaless_writer(out, fastavro.parse_schema(self._schemas[number - 1]), value)
        return out.getvalue()

    def _answer(self, request: Request) -> Answer:
        self.asked.append(request.path)
        refused = self._check(request)
        if refused is not None:
            return refused
        number = request.path.removeprefix("/schemas/ids/")
        subject = request.path.removeprefix("/subjects/").removesuffix("/versions/latest")
        if subject in self._subjects:
            return Answer.of_json(200, self._subjects[subject])
        if request.path == "/subjects":
            return Answer.of_json(200, [])
        if not number.isdecimal() or not 0 < int(number) <= len(self._schemas):
            return Answer.of_json(404, {"error_code": 40403, "message": "Schema not found"})
        return Answer.of_json(200, {"schema": json.dumps(self._schemas[int(number) - 1])})
