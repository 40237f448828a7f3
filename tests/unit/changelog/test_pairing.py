"""Events of random steps become the changes that the rules give, taken one key and one step at a time."""

import random
from collections import Counter
from itertools import pairwise

import pyarrow as pa
import pytest

from calve.changelog.events import ADDED, ORIGIN, STEP, WHOLE
from calve.changelog.pairing import Pairing
from calve.model.changelog import ChangeStep

STEPS = 4
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("text", pa.string()),
        (STEP, pa.int32()),
        (ADDED, pa.bool_()),
        (WHOLE, pa.bool_()),
        (ORIGIN, pa.int64()),
    ]
)
Live = dict[int, tuple[int, str | None]]
"""Rows by the place that they have in their file."""


def random_steps(rng: random.Random) -> tuple[list[Live], pa.Table]:
    """The rows of a table after each step, the first one empty; and the events, those of a row next to each other."""
    states: list[Live] = [{}]
    events = []
    for step in range(STEPS):
        before, after = states[-1], dict(states[-1])
        for place in rng.sample(sorted(after), rng.randint(0, len(after))):
            del after[place]
        for number in range(rng.randint(0, 8)):
            after[100 * step + number] = (rng.randint(1, 5), rng.choice(["a", "b", None]))
        events += [(place, step, place in after) for place in before.keys() ^ after.keys()]
        states.append(after)
    rows = {place: row for state in states for place, row in state.items()}
    columns = [(*rows[place], step, added, True, place) for place, step, added in sorted(events)]
    return states, pa.Table.from_pylist([dict(zip(SCHEMA.names, one, strict=True)) for one in columns], SCHEMA)


def difference(before: Live, after: Live) -> Counter[tuple[str, int, str | None]]:
    """The changes between two states, key by key."""
    found: Counter[tuple[str, int, str | None]] = Counter()
    for key in range(1, 6):
        old, new = (Counter(row for row in state.values() if row[0] == key) for state in (before, after))
        gone, entered = old - new, new - old
        update = gone.total() == entered.total() == 1
        found.update({("update_preimage" if update else "delete", *row): count for row, count in gone.items()})
        found.update({("update_postimage" if update else "insert", *row): count for row, count in entered.items()})
    return found


def pairing(*, net: bool) -> Pairing:
    steps = tuple(ChangeStep(number, number, 0, None) for number in range(STEPS))
    return Pairing(steps, (0,), net=net, before=True)


@pytest.mark.parametrize("seed", range(60))
def test_steps_with_several_rows_of_a_key_have_the_difference_of_their_rows(seed: int) -> None:
    states, events = random_steps(random.Random(seed))
    found: list[Counter[tuple[str, int, str | None]]] = [Counter() for _ in range(STEPS)]
    for row in pairing(net=False).changes(events).to_pylist():
        found[row["_commit_version"]][row["_change_type"], row["id"], row["text"]] += 1
    assert found == [difference(before, after) for before, after in pairwise(states)]


@pytest.mark.parametrize("seed", range(60))
def test_net_changes_with_several_rows_of_a_key_are_the_difference_of_the_ends(seed: int) -> None:
    states, events = random_steps(random.Random(seed))
    rows = pairing(net=True).changes(events).to_pylist()
    found = Counter((row["_change_type"], row["id"], row["text"]) for row in rows)
    assert found == difference(states[0], states[-1])


@pytest.mark.parametrize("net", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_the_order_of_events_decides_nothing(seed: int, *, net: bool) -> None:
    rng = random.Random(seed)
    _, events = random_steps(rng)
    shuffled = events.take(rng.sample(range(events.num_rows), events.num_rows))
    found = (pairing(net=net).changes(one).to_pylist() for one in (events, shuffled))
    first, second = (Counter(tuple(row.items()) for row in rows) for rows in found)
    assert first == second
