"""calve's metrics for OpenTelemetry; needs the extra `calve[otel]`.

Every metric of calve's registry becomes an observable instrument of the same name, read when a reader collects. A
histogram becomes two counters, `<name>_count` and `<name>_sum`: observable instruments have no histograms.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from prometheus_client import CollectorRegistry
from prometheus_client.samples import Sample

from calve.clock import Clock, SystemClock
from calve.errors import InvalidInput
from calve.metrics import REGISTRY

try:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
except ImportError as error:
    raise InvalidInput("OpenTelemetry is not installed", hint='pip install "calve[otel]"') from error

_SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_count", "_sum")}
_FRESH_SECONDS = 1.0
"""All instruments of one collection read the registry once."""


class _Readings:
    """The samples of a registry by name, read at most once a second."""

    def __init__(self, registry: CollectorRegistry, clock: Clock) -> None:
        self._registry, self._clock = registry, clock
        self._lock = threading.Lock()
        self._samples: dict[str, list[Sample]] = {}
        self._until = -1.0

    def of(self, name: str, _options: CallbackOptions) -> Iterable[Observation]:
        with self._lock:
            if self._clock.monotonic() >= self._until:
                self._samples = {}
                for metric in self._registry.collect():
                    for sample in metric.samples:
                        self._samples.setdefault(sample.name, []).append(sample)
                self._until = self._clock.monotonic() + _FRESH_SECONDS
            return [Observation(sample.value, sample.labels) for sample in self._samples.get(name, ())]


def bridge(meter: Meter, registry: CollectorRegistry = REGISTRY, clock: Clock | None = None) -> None:
    """Create an instrument for every metric of a registry."""
    readings = _Readings(registry, clock or SystemClock())
    for metric in registry.collect():
        for suffix in _SUFFIXES.get(metric.type, ()):
            read: Callable[[CallbackOptions], Iterable[Observation]] = partial(readings.of, f"{metric.name}{suffix}")
            name = metric.name if suffix == "_total" else f"{metric.name}{suffix}"
            if metric.type == "gauge":
                meter.create_observable_gauge(name, [read], description=metric.documentation)
            else:
                meter.create_observable_counter(name, [read], description=metric.documentation)


@contextmanager
def export_otel() -> Iterator[None]:
    """Export the metrics by OTLP over HTTP until the end of the block, as the variables `OTEL_*` say."""
    provider = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
    bridge(provider.get_meter("calve"))
    try:
        yield
    finally:
        provider.shutdown()
