"""calve keeps Apache Iceberg tables equal to a stream of changes, exactly once, on Spark.

    lake = calve.connect()
    query = calve.sink(changes, name="orders", into=lake.table("shop.orders"), key=["id"]).start()

The names below are loaded when they are first used: executors import calve for every Python worker, and need none of
them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calve.api.maintain import compact as compact
    from calve.api.maintain import convert_deletes as convert_deletes
    from calve.changelog.changes import changes as changes
    from calve.errors import CalveError as CalveError
    from calve.lake import Lake as Lake
    from calve.lake import TableRef as TableRef
    from calve.lake import connect as connect
    from calve.model.health import CommitReport as CommitReport
    from calve.model.health import Health as Health
    from calve.model.health import Status as Status
    from calve.model.letters import ReplayReport as ReplayReport
    from calve.model.spec import Debezium as Debezium
    from calve.model.spec import Diff as Diff
    from calve.model.spec import NoEnvelope as NoEnvelope
    from calve.model.spec import Upsert as Upsert
    from calve.pipeline.query import Query as Query
    from calve.pipeline.sink import Sink as Sink
    from calve.pipeline.sink import sink as sink
    from calve.reader.read import read as read
    from calve.source.files.definition import files as files
    from calve.source.generator import orders as orders
    from calve.source.kafka.definition import kafka as kafka
    from calve.source.table import table_changes as table_changes
    from calve.source.table_stream import stream_changes as stream_changes

__version__ = "0.1.0"

_PUBLIC = {
    "CalveError": "calve.errors",
    "CommitReport": "calve.model.health",
    "Debezium": "calve.model.spec",
    "Diff": "calve.model.spec",
    "Health": "calve.model.health",
    "Lake": "calve.lake",
    "NoEnvelope": "calve.model.spec",
    "Query": "calve.pipeline.query",
    "ReplayReport": "calve.model.letters",
    "Sink": "calve.pipeline.sink",
    "Status": "calve.model.health",
    "TableRef": "calve.lake",
    "Upsert": "calve.model.spec",
    "changes": "calve.changelog.changes",
    "connect": "calve.lake",
    "compact": "calve.api.maintain",
    "convert_deletes": "calve.api.maintain",
    "files": "calve.source.files.definition",
    "kafka": "calve.source.kafka.definition",
    "orders": "calve.source.generator",
    "read": "calve.reader.read",
    "sink": "calve.pipeline.sink",
    "stream_changes": "calve.source.table_stream",
    "table_changes": "calve.source.table",
}

__all__ = [
    "CalveError",
    "CommitReport",
    "Debezium",
    "Diff",
    "Health",
    "Lake",
    "NoEnvelope",
    "Query",
    "ReplayReport",
    "Sink",
    "Status",
    "TableRef",
    "Upsert",
    "changes",
    "compact",
    "connect",
    "convert_deletes",
    "files",
    "kafka",
    "orders",
    "read",
    "sink",
    "stream_changes",
    "table_changes",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'calve' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
