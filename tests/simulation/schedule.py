"""Random schedules: the environment disturbs, drivers step, and in the end the supervised driver must catch up."""

import random
from dataclasses import replace
from typing import Any

from calve.iceberg.snapshot.retention import MAIN, ExpiryPolicy, History, PastRef, PastSnapshot, expired
from calve.model.frontier import Frontier
from calve.model.spec import RetentionOptions

from .contents import Violation
from .driver import Driver
from .world import World


class ExpiryByRule:
    """Expires snapshots by calve's own rules, which cost no sink its progress."""

    def __init__(self, world: World, seed: int, *, on: bool) -> None:
        self._world, self._on = world, on
        self._rng = random.Random(f"expiry of {seed}")
        self._born: dict[int, int] = {}
        """When each snapshot was first seen."""

    def step(self) -> None:
        world, table = self._world, self._world.table
        for number in table.snapshots:
            self._born.setdefault(number, world.now)
        if not self._on or self._rng.random() > 0.05 or table.head is None:
            return
        past = {
            number: PastSnapshot(
                number, s.info.parent_id, s.info.sequence_number, self._born[number], "sink" if s.info.own else None
            )
            for number, s in table.snapshots.items()
        }
        sinks = frozenset({"sink"} if table.stated else ())
        history = History(past, {MAIN: PastRef(table.head, branch=True)}, sinks=sinks)
        options = RetentionOptions(self._rng.choice([0, 10, 50]), thin=self._rng.random() < 0.5)
        gone = expired(history, ExpiryPolicy(options, MAIN, world.now, batch=1, force=True)).snapshots
        if gone:
            world.table = replace(table, snapshots={n: s for n, s in table.snapshots.items() if n not in gone})
            world.commits["expiries"] += 1
            world.say(f"expired {gone} by rule")


class Simulation:
    """One seed, one schedule."""

    driver: type[Driver] = Driver

    def __init__(self, seed: int, *, own_expiry: bool | None = None, **fixed: Any) -> None:
        self.world = World(seed, **fixed)
        drawn = "faults" not in fixed and seed % 3 == 0
        self.expiry = ExpiryByRule(self.world, seed, on=drawn if own_expiry is None else own_expiry)
        self.version = 1
        self.drivers: list[Driver] = []
        self.start()

    # ---- processes

    def start(self, version: int | None = None, disk: str = "same", *, supervised: bool = True) -> None:
        if disk != "same" or self.live():
            self.world.events.add("checkpoint")
        driver = self.driver(self.world, len(self.drivers) + 1, version or self.version, disk)
        self.drivers.append(driver)
        if supervised:
            self.world.current = driver  # type: ignore[attr-defined]
        self.world.say(f"START run {driver.number} version {driver.version} disk {disk}")

    @property
    def current(self) -> Driver:
        current: Driver = self.world.current  # type: ignore[attr-defined]
        return current

    def live(self) -> list[Driver]:
        return [d for d in self.drivers if d.alive]

    def crash(self, driver: Driver, why: str) -> None:
        self.world.say(f"CRASH run {driver.number} ({why})")
        driver.alive = False

    def step(self, driver: Driver) -> None:
        driver.step()
        if driver.exit == "TerminalError" and self.stage_may_be_full():
            self.world.say("MAX STAGED SIZE is raised")
            self.world.limit_raised, driver.exit = True, ""
        if driver.exit and driver.exit not in {"fenced", "sealed"}:
            self.justify(driver.exit)

    def stage_may_be_full(self) -> bool:
        setup = self.world.setup
        return setup.own_times and setup.staged_limit is not None

    def justify(self, why: str) -> None:
        """Check that a halt is justified by something the schedule did."""
        events, setup = self.world.events, self.world.setup
        reasons = {
            "TableRolledBack": "rollback" in events,
            "TableRecreated": "recreate" in events,
            "ForeignCommit": "foreign" in events and not setup.accept,
            "CheckpointGap": bool(events & {"state_lost", "orphan", "recreate", "rollback"}),
            "ProgressUnprovable": bool(events & {"rollback", "foreign", "recreate", "expire", "property_lost"}),
            "KeyViolation": "dirty" in events,
            "InvalidInput": setup.adopt and "expire" in events,  # the claim's snapshot, while its rows were looked at
            "SourceLost": not setup.seekable and bool(events & {"checkpoint", "state_lost", "orphan"}),
        }
        if not reasons.get(why, False):
            raise Violation(f"unjustified halt {why}")

    # ---- the environment

    def disturb(self) -> None:
        world, rng = self.world, self.world.rng
        draw = rng.random()
        if draw < 0.35:
            world.produce(rng.choice([1, 1, 2, 3]))
            return
        if not self.current.alive and self.current.exit != "fenced" and draw < 0.6:
            self.restart()
            return
        rare = {"foreign", "rollback", "recreate", "state_lost", "record_lost", "property_lost"}
        action = rng.choice(
            [
                "zombie",
                "replace",
                "replace",
                "expire",
                "down",
                "idle",
                "stray",
                "deliver",
                "orphan",
                "pause",
                "copy",
                *sorted(rare),
                *(("load", "dirty") if world.setup.adopt else ()),
            ]
        )
        if action in rare and rng.random() < 0.5:
            return
        if action == "deliver" and world.in_flight:
            world.say("a late request arrives")
            world.try_apply(world.in_flight.pop(rng.randrange(len(world.in_flight))))
        elif action == "copy" and world.disk:
            world.disk_copies.append(world.disk.copy())
        elif world.has(action):
            self.act(action)

    def restart(self) -> None:
        world, rng = self.world, self.world.rng
        disk = "same"
        if world.has("checkpoint_lost") and rng.random() < 0.3:
            disk = "lost"
        elif world.has("checkpoint_rewound") and rng.random() < 0.4 and world.disk_copies:
            disk = "old"
        if world.has("version") and rng.random() < 0.3:
            self.version += 1
        self.start(disk=disk)

    def act(self, action: str) -> None:
        own = getattr(self, f"do_{action}", None)
        (own or getattr(self.world, f"do_{action}"))()

    def do_zombie(self) -> None:
        rng = self.world.rng
        if len(self.live()) < 3 and self.current.alive:
            if self.world.has("version") and rng.random() < 0.4:
                self.version += 1
            self.start(disk=rng.choice(["same", "lost"]))

    def do_stray(self) -> None:
        if len(self.live()) < 3:
            self.start(version=max(1, self.version - 1), disk="lost", supervised=False)

    def do_pause(self) -> None:
        rng = self.world.rng
        rng.choice(self.drivers).paused_until = self.world.now + rng.choice([20, 60, 200])

    def do_orphan(self) -> None:
        """Remove orphans as another process would; its age limit spares files of running drivers."""
        if not self.live() and not self.world.in_flight:
            self.world.remove_orphans()

    def do_state_lost(self) -> None:
        if not self.live():
            self.world.wipe_state()

    def do_record_lost(self) -> None:
        if not self.live():
            self.world.lose_record()

    # ---- running

    def run(self) -> str:
        try:
            return self.run_schedule()
        finally:
            for driver in self.drivers:
                driver.end()

    def run_schedule(self) -> str:
        world, rng = self.world, self.world.rng
        for _ in range(world.setup.steps):
            world.now += 1
            self.expiry.step()
            world.step()
            live = [d for d in self.live() if d.paused_until <= world.now]
            if not live or rng.random() < 0.18:
                self.disturb()
                continue
            driver = rng.choice(live)
            if rng.random() < world.setup.crash * (1 if driver is self.current else 0.5):
                self.crash(driver, "killed")
                continue
            self.step(driver)
        return self.settle()

    def settle(self) -> str:
        """End faults and zombies: the supervised run must catch up, or halt with a justification."""
        world = self.world
        world.settling, world.down = True, False
        world.say("--- faults stop")
        for request in world.in_flight:
            if world.rng.random() < 0.5:
                world.try_apply(request)
        for driver in self.live():
            driver.paused_until = 0
            if driver is not self.current:
                self.crash(driver, "zombie dies")
        if world.setup.bounded:
            world.produce(world.source_limit)
        elif world.setup.own_times:
            world.promise(max(world.last_time() + 1, world.promised) + 60)  # windows of any length are over then
        self.check_successor()
        if not self.catch_up():
            return "halted"
        if world.broken:
            return "broken"
        self.check_quiet()
        return "ok"

    def catch_up(self) -> bool:
        """Run until everything is committed; False if the sink halted."""
        world = self.world
        for _ in range(6000 + 2 * world.setup.skew):
            world.now += 1
            if self.current.exit not in {"", "sealed"}:
                return False
            if self.current.exit == "sealed":
                return True
            if not self.current.alive:
                self.start()
            self.step(self.current)
            if self.caught_up():
                return True
        raise Violation(f"not caught up: {world.truth}, source {len(world.source)}, broken {world.broken}")

    def check_successor(self) -> None:
        if self.current.exit != "fenced" or any(d.exit not in {"", "fenced", "sealed"} for d in self.drivers):
            return
        holder = next((d for d in self.drivers if d.run.state.fence == self.world.truth.fence), None)
        older = holder is not None and holder.booted is not None and holder.booted < self.current.started
        if older and self.current.version >= self.version:
            raise Violation("the supervised run was fenced by an older one that is gone")

    def caught_up(self) -> bool:
        world = self.world
        all_there = int(world.truth.offsets or 0) == len(world.source)
        if world.setup.own_times:
            read = int(self.current.run.state.end or 0) == len(world.source)
            all_there = read and Frontier(world.last_time()) < world.truth.frontier
        taking_over = world.truth.adopting or (world.truth.catching_up and not world.setup.own_times)
        all_there = all_there and not taking_over
        return (all_there and (not world.setup.bounded or world.truth.frontier.sealed)) or bool(world.broken)

    def check_quiet(self) -> None:
        """Check that nothing is pending, and that another run without new data commits nothing."""
        world = self.world
        for _ in range(150 + 2 * world.setup.skew):
            world.now += 1
            if self.current.alive:
                self.step(self.current)
            if not self.current.run.state.pending:
                break
        if self.current.alive and self.current.run.state.pending:
            raise Violation("work stays pending")
        if self.current.alive:
            self.crash(self.current, "rerun")
        owned = world.truth.fence == self.current.run.state.fence  # else a rerun rightly claims the table
        head, through = world.table.head, owned and not world.truth.catching_up
        self.start()
        for _ in range(150):
            world.now += 1
            if self.current.alive:
                self.step(self.current)
        if world.table.head != head and through and not world.setup.heartbeat:
            raise Violation("a rerun with nothing new committed")
        staged = [name for name in world.state if name.startswith("stage/")]
        if self.current.exit == "sealed" and any(epoch_of(name) <= world.truth.fence.epoch for name in staged):
            raise Violation(f"a complete sink still has staged files: {staged}")


def epoch_of(staged: str) -> int:
    """The epoch of the run that staged a file."""
    return int(staged.split("/")[1].partition("-")[0])


def simulate(seed: int, **fixed: Any) -> tuple[str, Simulation]:
    """Return the outcome of one schedule: ok, halted (justified), broken (the schedule itself destroyed the table)."""
    simulation = Simulation(seed, **fixed)
    return simulation.run(), simulation
