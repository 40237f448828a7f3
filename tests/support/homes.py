"""Home folders with statuses for the page: sinks in every state, one of them with a real table."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from calve.clock import SystemClock
from calve.errors import BadRow
from calve.iceberg.small_tables.dead_letters import LetterTable
from calve.model.change import Letter, Origin
from calve.model.health import CommitReport, Health, MaintenanceReport, SourcePart, StateChange, Status
from calve.watch.process import this_process
from calve.watch.status_files import append_commit, commits_file, status_file, write_status
from calve.web.access import PageAccess
from calve.web.app import PageApp, page_app
from calve.web.home import HomeView
from calve.web.server import PageServer
from tests.support.runs import Run, spec_of

MINUTE = 60_000
STALLED = (
    'the commit was not applied\n  loading table "shop.payments" failed: connection refused\n'
    "  hint: The catalog is not available. A running sink retries."
)
HALTED = (
    'the value of "amount" is not a DECIMAL(12,2)\n  Got "12,50" in topic refunds, partition 2, offset 88213.\n'
    "  hint: Mend the record, or set ON BAD ROW = 'dead letter'."
)


@dataclass(frozen=True)
class Served:
    """A page and its home."""

    home: Path
    url: str
    view: HomeView
    app: PageApp


@contextmanager
def served(home: Path, access: PageAccess | None = None) -> Iterator[Served]:
    """Serve the page of a home on a free port."""
    access = access or PageAccess("127.0.0.1")
    view = HomeView(home)
    app = page_app(view, lambda: "calve_up 1\n", access)
    server = PageServer(app, access, 0)
    with server.serving():
        yield Served(home, server.url, view, app)


def status_of(sink: str, health: Health, **values: object) -> Status:
    """A status of a process that lives: this one."""
    now = SystemClock().now_ms()
    begun = Status.begun(sink, f"shop.{sink}", None, now - 90 * MINUTE)
    first = replace(begun, process=this_process(), heartbeat_ms=now, heartbeat_every_ms=3600_000, run="r1")
    ran = first.entered(Health.STARTING, now - 90 * MINUTE).entered(Health.RUNNING, now - 89 * MINUTE)
    cause, hint = str(values.pop("cause", "")), str(values.pop("hint", ""))
    there = ran if health is Health.RUNNING else ran.entered(health, now - 4 * MINUTE, cause, hint)
    return replace(replace(there, updated_ms=now), **values)  # type: ignore[arg-type]


def write(home: Path, *statuses: Status) -> None:
    for status in statuses:
        assert write_status(status_file(home, status.sink), status) == ""


def add_letters(run: Run, letters: Iterable[Letter], sink: str | None = None) -> None:
    """Add dead letters of a sink, each in a file of its own, so that their order is known."""
    table = LetterTable(run.catalog, run.spec.table.dead_letters, sink or run.spec.name, SystemClock(), run.ids)
    for letter in letters:
        assert table.add([letter], "checkpoint 1") == 1


def bad_amount(offset: int, amount: str) -> Letter:
    """A record whose amount is not a number."""
    error = BadRow(
        'the value of "amount" is not a DECIMAL(12,2)',
        detail=f'Got "{amount}".',
        hint="Mend the record, and send it again.",
    )
    return Letter(Origin("orders", offset % 3, offset, value=b'{"password": "secret"}'), error)


def sinks_in_many_states(home: Path) -> Run:
    """Write five sinks; `orders` has a table in the embedded catalog, which the returned run wrote."""
    now = SystemClock().now_ms()
    run = Run(home, spec_of("orders"))
    last = None
    for batch in range(30):
        last = run.commit(dict.fromkeys(range(batch * 40, batch * 40 + 60), f"v{batch}"))
        assert last is not None
        phases = (
            ("read", 0.021),
            ("write", 0.18 + 0.01 * (batch % 7)),
            ("record", 0.02),
            ("load", 0.012),
            ("lookup", 0.05),
        )
        report = CommitReport(
            snapshot_id=last.snapshot_id,
            frontier=f"[{now - (30 - batch) * 2 * MINUTE}]",
            changes=60,
            rows=60,
            deletes=20 if batch else 0,
            files=2 if batch else 1,
            bytes=4200 + 31 * batch,
            seconds=0.08 + 0.004 * (batch % 5),
            at_ms=now - (30 - batch) * 2 * MINUTE,
            epoch=1,
            attempts=3 if batch == 21 else 1,
            conflicts=1 if batch == 21 else 0,
            phases=(*phases, ("commit", 0.03), ("tidy", 0.004)),
        )
        append_commit(commits_file(home, "orders"), report)
    assert last is not None
    add_letters(run, [bad_amount(119_871 + n, amount) for n, amount in enumerate(("12,50", "1.000.0", "n/a", "–"))])
    ends = (120_000, 120_442, 120_022)
    orders = status_of(
        "orders",
        Health.RUNNING,
        rows=1_800,
        commits=30,
        run_commits=30,
        last_snapshot_id=last.snapshot_id,
        last_commit_ms=now - 2 * MINUTE,
        lag_ms=1_400,
        unread=431,
        counts="offsets",
        frontier=f"[{now - 2 * MINUTE}]",
        minted=f"[{now - MINUTE}]",
        input=f"[{now - 1_400}]",
        staged=3,
        staged_rows=12_400,
        pending=1,
        pending_bytes=18_400,
        pending_changes=310,
        epoch=7,
        rows_per_second=31.4,
        conflicts=1,
        failed_attempts=2,
        dead_letters=4,
        source_name="orders",
        state_sizes=(("stage", 48_210),),
        source=tuple(SourcePart(f"orders {p}", 120_000 + 11 * p, end, 20_000) for p, end in enumerate(ends)),
        source_parts=3,
        source_keeps_ms=7 * 24 * 60 * MINUTE,
        unread_most=431,
        retention_left=100_011,
        maintenance=(
            MaintenanceReport("compact", "done", now - 30 * MINUTE, 3.7, "24 files with 1,100 rows became 2"),
        ),
        compactions=1,
        last_compaction="24 files with 1,100 rows became 2 with 900",
        last_compaction_ms=now - 30 * MINUTE,
    )
    for sink, every in (("payments", 3), ("refunds", 5), ("customers", 7), ("stock", 4)):
        for batch in range(40):
            rows = 900 + 170 * (batch * every % 11)
            append_commit(
                commits_file(home, sink), CommitReport(batch + 1, "[1]", rows, rows, 0, 1, 30 * rows, 0.1, at_ms=now)
            )
    states = (*orders.states, StateChange(Health.STALLED, now - 20 * MINUTE, STALLED, "", "r1"))
    orders = replace(orders, states=(*states, StateChange(Health.RUNNING, now - 17 * MINUTE, "", "", "r1")))
    write(
        home,
        orders,
        status_of(
            "payments",
            Health.STALLED,
            cause=STALLED,
            rows=912_344,
            commits=412,
            pending=6,
            unread=1_204,
            counts="offsets",
            last_commit_ms=now - 4 * MINUTE,
            lag_ms=251_000,
            frontier=f"[{now - 4 * MINUTE}]",
        ),
        status_of(
            "refunds",
            Health.HALTED,
            cause=HALTED,
            rows=51_002,
            commits=77,
            last_commit_ms=now - 5 * MINUTE,
            dead_letters=3,
        ),
        status_of(
            "customers", Health.SEALED, rows=12_004_511, commits=1_204, last_commit_ms=now - 4 * MINUTE, frontier="[]"
        ),
        status_of(
            "stock",
            Health.RUNNING,
            rows=48_133,
            commits=96,
            last_commit_ms=now - 9_000,
            lag_ms=300,
            rows_per_second=4.2,
        ),
    )
    return run
