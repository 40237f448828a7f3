"""The client of Hive's metastore: pyiceberg's, except that it leaves no lock behind. Needs thrift, the extra `hive`.

A commit takes a lock, reads the table, and replaces it: only the lock excludes other writers, since metastores before
Hive 4 compare nothing. The connection that took the lock releases it. If that connection broke, another one does,
unless the metastore may still be processing the commit: applied late, it would overwrite another writer's commit. Such
a lock is kept until the commit shows in the table, or until the metastore expires the lock (`metastore.txn.timeout`,
five minutes).
"""

import logging
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import (
    CheckLockRequest,
    EnvironmentContext,
    LockRequest,
    LockResponse,
    NoSuchLockException,
    ShowLocksRequest,
    TxnAbortedException,
    UnlockRequest,
)
from hive_metastore.ttypes import Table as HiveTable
from pyiceberg.catalog import URI
from pyiceberg.catalog.hive import (
    HIVE_KERBEROS_AUTH,
    HIVE_KERBEROS_AUTH_DEFAULT,
    HIVE_KERBEROS_SERVICE_NAME,
    HIVE_KERBEROS_SERVICE_NAME_DEFAULT,
    PROP_METADATA_LOCATION,
    PROP_PREVIOUS_METADATA_LOCATION,
    HiveCatalog,
    _HiveClient,
)
from pyiceberg.exceptions import CommitFailedException, WaitingForLockException
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.utils.properties import property_as_bool
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.protocol.TProtocol import TProtocolException
from thrift.Thrift import TApplicationException, TException
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport, TSaslClientTransport, TTransportException

from calve.catalog.checked import NotSent
from calve.catalog.failures import text_of

ANSWER_SECONDS = 60
_EXPECTED_NAME, _EXPECTED_VALUE = "expected_parameter_key", "expected_parameter_value"
"""Hive 4 compares these before it replaces a table; earlier versions ignore them."""
_NO_ANSWER = (OSError, TApplicationException, TProtocolException, TTransportException)
"""After these the metastore may still be processing a request, unlike after its own errors."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Kept:
    """A lock that its own connection did not release."""

    database: str
    table: str
    awaited: str
    """The metadata location that the table gets once the metastore is done; empty if it is done."""


class HiveClient(HiveCatalog):
    """A catalog in Hive's metastore."""

    _kept: dict[str, _Kept]
    """By the names of the locks."""

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self._kept = {}

    @staticmethod
    def _create_hive_client(properties: dict[str, str]) -> _HiveClient:
        kerberos = property_as_bool(properties, HIVE_KERBEROS_AUTH, HIVE_KERBEROS_AUTH_DEFAULT)
        service = properties.get(HIVE_KERBEROS_SERVICE_NAME, HIVE_KERBEROS_SERVICE_NAME_DEFAULT)
        return _Connection(properties[URI].split(",")[0], properties.get("ugi"), kerberos, service)

    def _create_lock_request(self, database_name: str, table_name: str) -> LockRequest:
        request = super()._create_lock_request(database_name, table_name)
        request.agentInfo = f"calve-{uuid.uuid4()}"  # identifies a lock whose response is lost
        return request

    def commit_table(self, table: Table, *arguments: Any, **named: Any) -> CommitTableResponse:
        """Like pyiceberg's. A lock held by another process is not a conflict: nothing was sent."""
        database, name = self.identifier_to_database_and_table(table.name())
        self._release(database, name)
        try:
            return super().commit_table(table, *arguments, **named)
        except CommitFailedException as error:
            if isinstance(error.__cause__, WaitingForLockException):
                raise error.__cause__ from None
            raise
        finally:
            calls = self._client.calls if isinstance(self._client, _Connection) else None
            if calls is not None and calls.lock_name:
                self._kept[calls.lock_name] = _Kept(database, name, calls.unanswered)
                self._release(database, name)

    def _release(self, database: str, name: str) -> None:
        """Release locks on a table that broken connections left, where that is safe."""
        kept = {lock: one for lock, one in self._kept.items() if (one.database, one.table) == (database, name)}
        if not kept:
            return
        try:
            with self._client as client:
                shown = client.show_locks(ShowLocksRequest(dbname=database, tablename=name)).locks or ()
                there = {lock.agentInfo: lock.lockid for lock in shown}
                now = client.get_table(dbname=database, tbl_name=name).parameters.get(PROP_METADATA_LOCATION)
                for lock, one in kept.items():
                    if lock in there and one.awaited not in {"", now}:
                        _log.warning(
                            "%s.%s stays locked: the metastore may still be processing a commit", database, name
                        )
                        continue
                    if lock in there:
                        client.give_back(there[lock])
                    del self._kept[lock]
        except (OSError, TException) as error:
            _log.warning("could not release a lock on %s.%s: %s", database, name, text_of(error))


class _Connection(_HiveClient):
    """Has a time-out, and knows whether the last commit was answered."""

    calls: "_Calls | None" = None

    def _init_thrift_transport(self) -> Any:
        address = urlsplit(self._uri)
        socket = TSocket(address.hostname, address.port)
        socket.setTimeout(ANSWER_SECONDS * 1000)
        if self._kerberos_auth:
            return TSaslClientTransport(socket, host=address.hostname, service=self._kerberos_service_name)
        return TBufferedTransport(socket)

    def _client(self) -> Client:
        self.calls = _Calls(TBinaryProtocol(self._transport))
        if self._ugi:
            self.calls.set_ugi(*self._ugi)
        return self.calls


class _Calls(Client):  # type: ignore[misc] # it has no types
    """The calls of one connection."""

    lock_name = ""
    """Name of the lock that was requested and not released."""
    lock_id: int | None = None
    unanswered = ""
    """Location of the metadata that was sent, while it is unknown whether the metastore is done with it."""

    def lock(self, request: LockRequest) -> LockResponse:
        self.lock_name = request.agentInfo
        response = super().lock(request)
        self.lock_id = response.lockid
        return response

    def unlock(self, request: UnlockRequest) -> None:
        """Release the lock, unless this connection broke."""
        if self.unanswered:
            return
        try:
            self.give_back(request.lockid)
        except (OSError, TException) as error:
            _log.warning("could not release the lock on a table: %s", text_of(error))
        else:
            self.lock_name = ""

    def give_back(self, lock_id: int) -> None:
        """Release a lock; one that expired is fine."""
        with suppress(NoSuchLockException):
            super().unlock(UnlockRequest(lockid=lock_id))

    def alter_table_with_environment_context(
        self, dbname: str, tbl_name: str, new_tbl: HiveTable, environment_context: EnvironmentContext
    ) -> None:
        """Replace the table if the lock is still held: it may have expired while metadata was written."""
        if self.lock_id is None:
            super().alter_table_with_environment_context(dbname, tbl_name, new_tbl, environment_context)
            return
        try:
            self.check_lock(CheckLockRequest(lockid=self.lock_id))
        except (NoSuchLockException, TxnAbortedException) as error:
            raise NotSent("the lock expired before the table could be replaced") from error
        before = new_tbl.parameters[PROP_PREVIOUS_METADATA_LOCATION]
        environment_context.properties.update({_EXPECTED_NAME: PROP_METADATA_LOCATION, _EXPECTED_VALUE: before})
        self.unanswered = new_tbl.parameters[PROP_METADATA_LOCATION]
        try:
            super().alter_table_with_environment_context(dbname, tbl_name, new_tbl, environment_context)
        except _NO_ANSWER:
            raise
        except TException:
            self.unanswered = ""
            raise
        self.unanswered = ""
