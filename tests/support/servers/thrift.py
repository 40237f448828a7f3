"""Hive's metastore over Thrift, in this process: a proxy for a real one, and a fake with a few tables.

Both are the same server with different handlers. A call triggers the first fault of its name.
"""

import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from hive_metastore.ThriftHiveMetastore import Processor
from hive_metastore.ttypes import (
    CheckLockRequest,
    Database,
    EnvironmentContext,
    LockRequest,
    LockResponse,
    LockState,
    MetaException,
    NoSuchLockException,
    NoSuchObjectException,
    ShowLocksRequest,
    ShowLocksResponse,
    ShowLocksResponseElement,
    Table,
    UnlockRequest,
)
from pyiceberg.catalog.hive import _HiveClient  # with all calls of the metastore, not those of a catalog alone
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TApplicationException
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport, TTransportException

Forward = Callable[[], Any]
"""Makes the call, and returns what it returns."""
Act = Callable[[Forward], Any]
"""What happens to a call in place of being made; it may make it itself."""


def lost(forward: Forward) -> None:
    """It is done, and the connection ends."""
    forward()
    raise TTransportException(message="told to")


def repeated(forward: Forward) -> Any:
    """It is done twice, and answered once."""
    forward()
    return forward()


def failed(forward: Forward) -> None:
    """It is done, and the answer says that it failed."""
    forward()
    raise MetaException("told to")


def unparsable(forward: Forward) -> None:
    """It is done, and the answer is none to this call."""
    forward()
    raise TApplicationException(TApplicationException.INVALID_MESSAGE_TYPE, "told to")


ACTS: dict[str, Act] = {one.__name__: one for one in (lost, repeated, failed, unparsable)}
"""After each of them the call was made."""


@dataclass
class Fault:
    """Happens to the calls of a name: not to the first `after`, then to `times` of them."""

    call: str
    act: Act
    after: int = 0
    times: int = 1
    met: int = field(default=0, init=False)

    def takes(self, call: str) -> bool:
        """Whether this call is hit; counts it."""
        self.met += call == self.call
        return call == self.call and self.after < self.met <= self.after + self.times


class ThriftServer:
    """Answers at `uri` until `stop`. `seen` are the names of the calls that came, in their order."""

    def __init__(self, opened: Callable[[], Any]) -> None:
        """`opened` returns the handler of a connection as a context: an object with a method per call."""
        self._opened = opened
        self._lock = threading.Lock()
        self.faults: list[Fault] = []
        self.seen: list[str] = []
        self._server = _Server(self)
        self.uri = f"thrift://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def serve(self, transport: TBufferedTransport) -> None:
        """Answer the calls of one connection until it ends."""
        protocol = TBinaryProtocol(transport)
        with self._opened() as behind:
            processor = Processor(_Calls(self, behind))
            while True:
                processor.process(protocol, protocol)

    def answer(self, call: str, forward: Forward) -> Any:
        """What a call returns, after the faults."""
        with self._lock:
            self.seen.append(call)
            fault = next((f for f in self.faults if f.takes(call)), None)
        return fault.act(forward) if fault else forward()

    def stop(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Calls:
    """What Thrift's processor calls."""

    def __init__(self, server: ThriftServer, behind: Any) -> None:
        self._server, self._behind = server, behind

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._behind, name)
        return lambda *arguments: self._server.answer(name, lambda: call(*arguments))


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, owner: ThriftServer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.owner = owner


class _Handler(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        socket = TSocket()
        socket.setHandle(self.request)
        with suppress(TTransportException):  # the client has gone, or a fault ends the connection
            self.server.owner.serve(TBufferedTransport(socket))


def proxy(upstream: str) -> ThriftServer:
    """Forwards to a metastore; each connection has its own one to it."""
    return ThriftServer(lambda: _HiveClient(upstream))


class HiveTables:
    """A metastore of one database, with tables and locks."""

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}
        self.locks: dict[int, LockRequest] = {}
        """In the order of their requests: the first of a table has it, the others wait."""
        self._ids = count(1)

    @contextmanager
    def opened(self) -> "Iterator[HiveTables]":
        yield self

    def get_database(self, name: str) -> Database:
        return Database(name, parameters={})

    def create_database(self, _: Database) -> None:
        """There is one already."""

    def create_table(self, table: Table) -> None:
        self.tables[table.tableName] = table

    def get_table(self, _: str, name: str) -> Table:
        if name not in self.tables:
            raise NoSuchObjectException(name)
        return self.tables[name]

    def alter_table_with_environment_context(self, _: str, name: str, table: Table, __: EnvironmentContext) -> None:
        """Whatever is there, as Hive 3 does: locks alone keep others away."""
        self.tables[name] = table

    def lock(self, request: LockRequest) -> LockResponse:
        number = next(self._ids)
        self.locks[number] = request
        return self.check_lock(CheckLockRequest(number))

    def check_lock(self, request: CheckLockRequest) -> LockResponse:
        if request.lockid not in self.locks:
            raise NoSuchLockException("it expired")
        name = self.locks[request.lockid].component[0].tablename
        first = next(number for number, other in self.locks.items() if other.component[0].tablename == name)
        state = LockState.ACQUIRED if first == request.lockid else LockState.WAITING
        return LockResponse(request.lockid, state)

    def unlock(self, request: UnlockRequest) -> None:
        if self.locks.pop(request.lockid, None) is None:
            raise NoSuchLockException("unknown")

    def show_locks(self, request: ShowLocksRequest) -> ShowLocksResponse:
        asked = [(number, lock, lock.component[0]) for number, lock in self.locks.items()]
        found = [
            ShowLocksResponseElement(number, of.dbname, of.tablename, agentInfo=lock.agentInfo)
            for number, lock, of in asked
            if of.tablename == request.tablename
        ]
        return ShowLocksResponse(found)
