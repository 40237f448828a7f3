"""A schema registry in this process: schemas by id, behind a login. It responds like Confluent's."""

import io
import json
import struct
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import fastavro
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import Message

from tests.support.servers.listening import Answer, Listening, Request
from tests.support.servers.logins import basic

USER, PASSWORD = "calve", "wolfram-registry-password"
SERIALIZED = "?format=serialized"


class SchemaRegistry:
    """Schemas get their numbers in order."""

    def __init__(self) -> None:
        self._schemas: list[Any] = []
        self._subjects: dict[str, list[dict[str, Any]]] = {}
        self._check = basic(USER, PASSWORD)
        self.asked: list[str] = []
        self.serializes = True
        """Whether it knows `format=serialized`."""
        self._server = Listening(self._answer)
        self.uri = self._server.uri

    def stop(self) -> None:
        """Close the port."""
        self._server.stop()

    def add(self, schema: Any) -> int:
        """The number of a new schema of Avro."""
        return self._added({"schema": json.dumps(schema)}, schema)

    def register(self, subject: str, schema: Any, kind: str = "AVRO") -> int:
        """The number of a new schema that is the newest of a subject."""
        body = {"schema": json.dumps(schema)} | ({} if kind == "AVRO" else {"schemaType": kind})
        return self._registered(subject, body, schema)

    def register_file(self, subject: str, file: FileDescriptorProto, references: Sequence[tuple[str, str]] = ()) -> int:
        """The same for a file of Protobuf, which imports others by names that are subjects."""
        referred = [{"name": name, "subject": other, "version": 1} for name, other in references]
        body = {"schemaType": "PROTOBUF", **({"references": referred} if referred else {})}
        return self._registered(subject, body, file)

    def encoded(self, number: int, value: Any) -> bytes:
        """A value as producers send it: a zero byte, the number of its schema, the value itself."""
        out = io.BytesIO(struct.pack(">bI", 0, number))
        out.seek(0, io.SEEK_END)
        fastavro.schemaless_writer(out, fastavro.parse_schema(self._schemas[number - 1][1]), value)
        return out.getvalue()

    def _registered(self, subject: str, body: dict[str, Any], schema: Any) -> int:
        number = self._added(body, schema)
        versions = self._subjects.setdefault(subject, [])
        versions.append({"subject": subject, "version": len(versions) + 1, "id": number})
        return number

    def _added(self, body: dict[str, Any], schema: Any) -> int:
        self._schemas.append((body, schema))
        return len(self._schemas)

    def _answer(self, request: Request) -> Answer:
        self.asked.append(request.path)
        refused = self._check(request)
        if refused is not None:
            return refused
        path, serialized = request.path.removesuffix(SERIALIZED), request.path.endswith(SERIALIZED)
        if path == "/subjects":
            return Answer.of_json(200, list(self._subjects))
        match path.strip("/").split("/"):
            case ["schemas", "ids", number] if number.isdecimal() and 0 < int(number) <= len(self._schemas):
                return Answer.of_json(200, self._body(int(number), serialized=serialized))
            case ["subjects", subject, "versions", version] if subject in self._subjects:
                found = self._subjects[subject][-1 if version == "latest" else int(version) - 1]
                return Answer.of_json(200, found | self._body(found["id"], serialized=serialized))
        return Answer.of_json(404, {"error_code": 40403, "message": "Schema not found"})

    def _body(self, number: int, *, serialized: bool) -> dict[str, Any]:
        body, schema = self._schemas[number - 1]
        if not isinstance(schema, FileDescriptorProto):
            return dict(body)
        shown = (
            b64encode(schema.SerializeToString()).decode() if serialized and self.serializes else 'syntax = "proto3";'
        )
        return {**body, "schema": shown}


def encoded_message(number: int, path: Sequence[int], message: Message) -> bytes:
    """A message as producers send it: a zero byte, the number of its schema, its place in the file, the message."""
    numbers = [] if list(path) == [0] else list(path)
    places = b"".join(_zigzag(one) for one in (len(numbers), *numbers))
    return struct.pack(">bI", 0, number) + places + bytes(message.SerializeToString())


def _zigzag(number: int) -> bytes:
    left, out = number << 1, bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])
