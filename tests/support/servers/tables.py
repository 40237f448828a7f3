"""A REST catalog and a Glue service in this process, for tables with local files. Tests determine their responses."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.update import TableRequirement, TableUpdate

from calve.catalog.connect import connect_embedded
from calve.catalog.row_lineage import metadata_text
from tests.support.servers.listening import Answer, Listening, Request

_TABLE = re.compile(r"/v1/namespaces/(?P<namespace>[^/]+)/tables/(?P<table>[^/?]+)")


class RestTables:
    """Tables of an embedded catalog, over Iceberg's REST protocol."""

    def __init__(
        self, home: Path, config: Mapping[str, Any] | None = None, table_config: Mapping[str, str] | None = None
    ) -> None:
        self._catalog = connect_embedded(home)
        self._config, self._table_config = dict(config or {}), dict(table_config or {})
        self._server = Listening(self._answer)
        self.uri = self._server.uri

    def stop(self) -> None:
        self._server.stop()
        self._catalog.close()

    def _answer(self, request: Request) -> Answer:
        if request.path.startswith("/v1/config"):
            return Answer.of_json(200, {"defaults": {}, "overrides": self._config})
        found = _TABLE.match(request.path)
        if found is None:
            return Answer.of_json(404, {"error": {"message": "unknown", "type": "NoSuch", "code": 404}})
        name = (found["namespace"], found["table"])
        if request.method == "POST":
            given = json.loads(request.body)
            updates = TypeAdapter(tuple[TableUpdate, ...]).validate_python(given["updates"])
            needed = TypeAdapter(tuple[TableRequirement, ...]).validate_python(given["requirements"])
            try:
                self._catalog.commit_table(self._catalog.load_table(name), needed, updates)
            except CommitFailedException as error:
                return Answer.of_json(409, {"error": {"message": str(error), "type": "Conflict", "code": 409}})
        table = self._catalog.load_table(name)
        metadata = json.loads(metadata_text(table.metadata))
        answer = {"metadata-location": table.metadata_location, "metadata": metadata, "config": self._table_config}
        return Answer.of_json(200, answer)


@dataclass
class GlueTables:
    """One database of Glue. Logins are not checked."""

    tables: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._server = Listening(self._answer)
        self.uri = self._server.uri

    def stop(self) -> None:
        self._server.stop()

    def _answer(self, request: Request) -> Answer:
        body = json.loads(request.body)
        match request.header("X-Amz-Target").partition(".")[2]:
            case "GetDatabase":
                return Answer.of_json(200, {"Database": {"Name": body["Name"]}})
            case "CreateDatabase":
                return Answer.of_json(200, {})
            case "CreateTable" | "UpdateTable":
                given = body["TableInput"]
                there = self.tables.get(given["Name"], {}).get("VersionId", "0")
                if body.get("VersionId", there) != there:
                    return Answer.of_json(400, {"__type": "ConcurrentModificationException", "message": "too late"})
                version = str(int(there) + 1)
                self.tables[given["Name"]] = {**given, "DatabaseName": body["DatabaseName"], "VersionId": version}
                return Answer.of_json(200, {})
            case "GetTable" if body["Name"] in self.tables:
                return Answer.of_json(200, {"Table": self.tables[body["Name"]]})
        return Answer.of_json(400, {"__type": "EntityNotFoundException", "message": "unknown"})
