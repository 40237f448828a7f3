"""Fixtures and rules shared by all tests."""

import gc
import logging
import os
from collections.abc import Callable, Generator, Iterator

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings
from pyspark.sql import SparkSession
from xdist.remote import Producer

from calve import faults
from calve.spark.session import embedded_session
from tests.support import placing
from tests.support.changes import Death
from tests.support.jvm import LASTING
from tests.support.memory import keep_files_in_memory, remove_at_exit
from tests.support.progress import ProgressLines
from tests.support.readers import stop_iceberg_process
from tests.support.servers import kafka as kafka_server
from tests.support.servers import trino as trino_server
from tests.support.servers.kafka import Kafka
from tests.support.servers.lakehouse import Lakehouse, started
from tests.support.servers.postgres import NOT_THERE
from tests.support.servers.trino import NO_JAVA, Trino
from tests.support.warm import WarmProcess

keep_files_in_memory()

# Examples with files or Spark in them take as long as they take; how many there are is what bounds a run.
# Where a change is decided on, the same examples come every time.
settings.register_profile(
    "test",
    deadline=None,
    derandomize=os.environ.get("CI") == "true",
    max_examples=50,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("soak", parent=settings.get_profile("test"), derandomize=False, max_examples=1_000)
settings.load_profile("test")

SKIPS_ALLOWED_IN_CI: tuple[str, ...] = (
    NOT_THERE,  # no registry has it: it is tested where the machine brings it
    NO_JAVA,  # the same
)
"""Reasons of skips that are no failure with CI=true; each with why the machine that decides cannot run the test."""


@pytest.hookimpl(trylast=True)  # after the reporter
def pytest_configure(config: pytest.Config) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")  # none in a worker
    if reporter is not None and not reporter.isatty and not hasattr(config, "workerinput"):
        config.pluginmanager.register(ProgressLines(reporter.write_line))


def pytest_itemcollected(item: pytest.Item) -> None:
    """A test that draws its examples is worth many of them, with Spark fewer: `make soak` takes it at length."""
    drawn = is_hypothesis_test(getattr(item, "obj", None))
    if drawn and settings.get_current_profile_name() == "soak" and {"unit", "integration"} & set(item.path.parts):
        item.add_marker(pytest.mark.soak)


@pytest.hookimpl(trylast=True)  # after those that are not to run are gone
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    placing.order(items, config)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported stays to the end: neither imports nor tests look for garbage among it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> placing.Placing | None:
    return placing.Placing(config, log) if config.getoption("dist") == "worksteal" else None


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One local Spark for all tests of a worker, without any Iceberg jar."""
    session = embedded_session(tmp_path_factory.mktemp("spark-home"), master="local[2]", conf=LASTING)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakehouse]:
    """One REST catalog and one S3 for all tests of a worker."""
    running = started(tmp_path_factory.mktemp("servers"))
    yield running
    running.stop()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """One broker for all tests of a worker."""
    running = kafka_server.started(tmp_path_factory.mktemp("kafka"))
    yield running
    running.stop()


@pytest.fixture(scope="session")
def trino(tmp_path_factory: pytest.TempPathFactory, servers: Lakehouse) -> Iterator[Trino]:
    """A reader of what is in the REST catalog."""
    running = trino_server.started(tmp_path_factory.mktemp("trino"), servers)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def warm_process() -> type[WarmProcess]:
    """Starts processes on JVMs that are kept warm; its tests run where other tests use the same JVMs."""
    return WarmProcess


@pytest.fixture
def lakehouse(servers: Lakehouse) -> Iterator[Lakehouse]:
    """The servers, without the faults of other tests."""
    servers.calm()
    yield servers
    servers.calm()


@pytest.fixture
def dying() -> Iterator[Callable[[str], None]]:
    """Arms a failpoint at which the sink of this process dies: `Died` is raised there."""
    yield lambda point: faults.install(Death(point, nth=1))
    faults.install(None)


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """The command line sends calve's log elsewhere; the next test finds it where it was."""
    logger = logging.getLogger("calve")
    handlers, propagate, level = logger.handlers, logger.propagate, logger.level
    yield
    logger.handlers, logger.propagate = handlers, propagate
    logger.setLevel(level)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    fail_if_skipped_in_ci(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    fail_if_skipped_in_ci(report)
    return report


def fail_if_skipped_in_ci(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Where a change is decided on, a test that did not run proves nothing."""
    if os.environ.get("CI") != "true" or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
    if not any(allowed in reason for allowed in SKIPS_ALLOWED_IN_CI):
        report.outcome = "failed"
        report.longrepr = f"with CI=true a skip is a failure: {reason}"


def pytest_sessionfinish(exitstatus: int) -> None:
    stop_iceberg_process()
    if exitstatus == pytest.ExitCode.OK:
        remove_at_exit()
