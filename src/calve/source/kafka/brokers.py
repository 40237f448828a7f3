"""Connections to brokers, the state of a topic, and errors for failing brokers. Every request has a time limit."""

import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from calve.errors import InvalidInput, SourceLost, TransientError
from calve.suggest import suggestion

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

T = TypeVar("T")

ANSWER_SECONDS = 20.0
"""The longest that a request may take."""
GRACE_SECONDS = 2.0
"""What remains of it once no broker could be reached, or the login was refused."""
UNKNOWN_SECONDS = 30.0
"""How long brokers must say, without a break, that a topic does not exist: a broker that has just started may not know
its topics yet. Consumers of librdkafka wait as long (`topic.metadata.propagation.max.ms`)."""
RETENTION_SECONDS = 300.0
"""Between two questions for how long a topic keeps its records."""
REPORT_SECONDS = 3.0
"""The longest that a request for reports may take."""
_POLL_SECONDS = 0.05
_ERRORS_KEPT = 100
_EARLIEST, _LATEST = "earliest", "latest"
_AFTER = re.compile(r" \(after \d+ms in state \w+[^)]*\)")
"""Internals that librdkafka adds to its messages."""

_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())
_log.propagate = False  # librdkafka's own lines; the errors say what they mean


@dataclass(frozen=True)
class BrokerAccess:
    """How to connect to brokers. Goes to tasks; `options` are librdkafka's, with logins, and are never shown."""

    brokers: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def client(self, **more: Any) -> dict[str, Any]:
        """The settings of a client."""
        quiet = {"log_level": 2, "logger": _log, "socket.connection.setup.timeout.ms": 10_000}
        return {"bootstrap.servers": self.brokers, "client.id": "calve", **quiet, **self.options, **more}


@dataclass(frozen=True)
class TopicState:
    """A topic at one moment."""

    topic_id: str
    low: Mapping[int, int]
    """The first available offset of every partition."""
    high: Mapping[int, int]
    """The offset after the last one that consumers may read."""


class Brokers:
    """An admin client, opened when it is first used. Used by one thread."""

    def __init__(self, access: BrokerAccess) -> None:
        self._access = access
        self._errors: deque[Any] = deque(maxlen=_ERRORS_KEPT)
        """What the client reported since brokers last answered: an outage that is over says nothing about the next."""
        self._opened: AdminClient | None = None
        self._unknown_since: float | None = None
        """When the brokers first said that the topic does not exist; None if their last answer was another."""
        self._retention: tuple[float, int | None] | None = None
        """When to ask for the retention of the topic again, and the last answer."""

    def check(self) -> None:
        """Check that a broker responds. Raises TransientError."""
        kafka = installed()
        try:
            self._answer(self._admin().describe_cluster(request_timeout=ANSWER_SECONDS))
        except kafka.KafkaException as error:
            raise self._failed("connecting to the brokers", error) from error

    def topics(self) -> list[str]:
        """Names of all topics that this login may see."""
        admin = self._admin()
        kafka = installed()
        try:
            return sorted(admin.list_topics(timeout=ANSWER_SECONDS / 2).topics)
        except kafka.KafkaException as error:
            raise self._failed("listing topics", error) from error

    def state(self, topic: str) -> TopicState:
        """The current state of a topic that existed before.

        Raises SourceLost if brokers have said for a while that it does not exist, and TransientError until then.
        """
        since, self._unknown_since = self._unknown_since, None
        try:
            return self._state(topic)
        except SourceLost as error:
            now = time.monotonic()
            self._unknown_since = now if since is None else since
            if now - self._unknown_since >= UNKNOWN_SECONDS:
                raise
            raise TransientError(
                error.primary,
                detail=f"{error.detail} A broker that has just started may not know its topics yet.",
                hint=f"The sink stops if they still do not know it after {UNKNOWN_SECONDS:g} s.",
            ) from error

    def _state(self, topic: str) -> TopicState:
        """The current state of a topic. Raises SourceLost if it does not exist."""
        kafka = installed()
        admin = self._admin()
        try:
            described = self._answer(admin.describe_topics(kafka.TopicCollection([topic]))[topic])
        except kafka.KafkaException as error:
            if error.args[0].code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise SourceLost(f'there is no topic "{topic}"', detail=f"Brokers: {self._access.brokers}.") from error
            raise self._failed(f'describing topic "{topic}"', error) from error
        partitions = [partition.id for partition in described.partitions]
        low, high = (self.offsets(topic, partitions, spec) for spec in (_EARLIEST, _LATEST))
        return TopicState(str(described.topic_id or ""), low, high)

    def offsets(self, topic: str, partitions: Iterable[int], at: str | int) -> dict[int, int]:
        """The offset of each partition: 'earliest', 'latest', or the first whose record is not before a time in ms.

        For a partition without such a record it is the end.
        """
        from confluent_kafka.admin import OffsetSpec  # noqa: PLC0415 - an extra, see `installed`

        kafka = installed()
        spec = {_EARLIEST: OffsetSpec.earliest(), _LATEST: OffsetSpec.latest()}.get(str(at))
        spec = OffsetSpec.for_timestamp(at) if spec is None else spec
        asked = {kafka.TopicPartition(topic, p): spec for p in partitions}
        level = kafka.IsolationLevel.READ_COMMITTED
        try:
            futures = self._admin().list_offsets(asked, isolation_level=level, request_timeout=ANSWER_SECONDS)
            found = {place.partition: self._answer(future).offset for place, future in futures.items()}
        except kafka.KafkaException as error:
            raise self._failed(f'fetching the offsets of topic "{topic}"', error) from error
        late = [p for p, offset in found.items() if offset < 0]
        return found | (self.offsets(topic, late, _LATEST) if late else {})

    def retention_ms(self, topic: str) -> int | None:
        """How long the topic keeps records; None for ever, or if the login may not ask. Asked now and then.

        Never raises: it is for reports only.
        """
        now = time.monotonic()
        if self._retention is None or now >= self._retention[0]:
            try:
                self._retention = (now + RETENTION_SECONDS, self._retention_ms(topic))
            except (installed().KafkaException, KeyError, ValueError, TypeError) as error:
                _log.debug("the settings of topic %s are unknown: %s", topic, error)
                self._retention = (now + UNKNOWN_SECONDS, None)
        return self._retention[1]

    def _retention_ms(self, topic: str) -> int | None:
        """Raises KafkaException, and others for settings that brokers do not report as usual."""
        from confluent_kafka.admin import ConfigResource, ResourceType  # noqa: PLC0415 - an extra, see `installed`

        (asked,) = self._admin().describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        settings = self._answer(asked, REPORT_SECONDS)
        kept, policy = int(settings["retention.ms"].value), str(settings["cleanup.policy"].value)
        return kept if kept >= 0 and "delete" in policy else None

    def require(self, topic: str) -> TopicState:
        """Like `state`, for the definition of a source: raises InvalidInput at once, with a similar topic."""
        try:
            return self._state(topic)
        except SourceLost as error:
            names = [name for name in self.topics() if not name.startswith("__")]
            hint = suggestion(topic, names) or f"There are {', '.join(names[:10]) or 'none'}."
            raise InvalidInput(error.primary, detail=error.detail, hint=hint) from error

    def _admin(self) -> "AdminClient":
        installed()
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - an extra, see `installed`

        if self._opened is None:
            settings = self._access.client(error_cb=self._errors.append)
            self._opened = _configured(lambda: AdminClient(settings), self._access)
        return self._opened

    def _answer(self, future: "Future[T]", patience: float = ANSWER_SECONDS) -> T:
        """Wait for a response; not for long once none can be expected."""
        kafka = installed()
        hopeless = {
            kafka.KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 - the names of librdkafka's own errors
            kafka.KafkaError._AUTHENTICATION,  # noqa: SLF001 - the same
        }
        deadline = time.monotonic() + patience
        while True:
            try:
                answer = future.result(_POLL_SECONDS)
            except NoAnswer:
                now = time.monotonic()
                self._admin().poll(0)  # delivers errors to the callback
                if any(error.code() in hopeless for error in self._errors):
                    deadline = min(deadline, now + GRACE_SECONDS)
                if now > deadline:
                    raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._TIMED_OUT)) from None  # noqa: SLF001 - as above
            else:
                self._errors.clear()
                return answer

    def _failed(self, what: str, error: Exception) -> TransientError:
        """The error of a request, with the last cause that the client reported."""
        down = installed().KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001 - as above
        causes = [str(met.str()) for met in self._errors if met.code() != down][-1:]
        self._errors.clear()
        return transient(what, self._access, error, causes)


def transient(what: str, access: BrokerAccess, error: Exception, causes: Iterable[str] = ()) -> TransientError:
    """The error for failing brokers."""
    cause = error.args[0] if error.args else error
    reasons = [*causes] or [str(cause.str()) if hasattr(cause, "str") else str(cause)]
    return TransientError(
        f"{what} at {access.brokers} failed",
        detail=f"{_AFTER.sub('', '; '.join(reasons))}.",
        hint="Check the brokers' addresses, the security protocol, and the login.",
    )


def _configured(make: Callable[[], T], access: BrokerAccess) -> T:
    kafka = installed()
    try:
        return make()
    except kafka.KafkaException as error:
        raise InvalidInput(
            f"the settings for Kafka at {access.brokers} are invalid",
            detail=f"{error.args[0].str()}.",
            hint="Check SSL KEY PASSWORD; certificates and keys must be readable PEM files.",
        ) from error


def installed() -> Any:
    """The client library. Raises InvalidInput if it is missing."""
    try:
        import confluent_kafka  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise InvalidInput(
            "sources from Kafka need the package confluent-kafka",
            detail=f"{error}.",
            hint='Install it on the driver and the executors: pip install "calve[kafka]".',
        ) from error
    return confluent_kafka
