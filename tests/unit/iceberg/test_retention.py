from dataclasses import replace

import pytest

from calve.iceberg.snapshot import retention
from calve.iceberg.snapshot.retention import (
    BATCH,
    KEEP_ALL,
    MAX_AGE_MS,
    Expired,
    ExpiryPolicy,
    History,
    PastRef,
    PastSnapshot,
    Retention,
    expired,
)
from calve.model.spec import HOUR_MS, RetentionOptions

NOW = 1_700_000_000_000 // HOUR_MS * HOUR_MS
DAY_MS = 24 * HOUR_MS
MANY = 1000
WHOLE = RetentionOptions(thin=False)
"""Without thinning."""
DEFAULT = RetentionOptions()


def line(*times: int, first: int = 1, parent: int | None = None, sink: str | None = None) -> dict[int, PastSnapshot]:
    """A chain of snapshots with these times; ids and sequence numbers count from `first`."""
    ids = range(first, first + len(times))
    parents = [parent, *ids]
    return {n: PastSnapshot(n, parents[n - first], n, at, sink) for n, at in zip(ids, times, strict=True)}


def history(count: int, every_ms: int) -> History:
    """Snapshots 1 to `count` on main, the last of them now."""
    snapshots = line(*(NOW - (count - n) * every_ms for n in range(1, count + 1)))
    return History(snapshots, {"main": PastRef(count, branch=True)})


def gone(past: History, options: RetentionOptions = DEFAULT, now_ms: int = NOW, batch: int = 1) -> set[int]:
    return set(expired(past, ExpiryPolicy(options, "main", now_ms, batch)).snapshots)


def with_ref(past: History, name: str, ref: PastRef) -> History:
    return replace(past, refs={**past.refs, name: ref})


# ---- thinning


def test_a_short_young_history_is_kept_whole() -> None:
    assert not gone(history(KEEP_ALL, every_ms=1000))


@pytest.mark.long
def test_of_many_young_snapshots_the_newest_and_one_each_hour_remain() -> None:
    past = history(MANY, every_ms=60_000)
    kept = [s for n, s in past.snapshots.items() if n not in gone(past)]
    assert [s.snapshot_id for s in kept[-KEEP_ALL:]] == list(range(MANY - KEEP_ALL + 1, MANY + 1))
    hours = [s.timestamp_ms // HOUR_MS for s in kept[:-KEEP_ALL]]
    assert sorted(set(hours)) == hours
    assert hours == sorted({s.timestamp_ms // HOUR_MS for s in list(past.snapshots.values())[:-KEEP_ALL]})


def test_without_thinning_all_young_snapshots_remain() -> None:
    assert not gone(history(MANY, every_ms=60_000), WHOLE)


def test_what_was_kept_for_an_hour_stays_kept_once_it_is_cut_off() -> None:
    past = history(MANY, every_ms=60_000)
    away = gone(past)
    left = {n: replace(s, parent_id=None) if s.parent_id in away else s for n, s in past.snapshots.items()}
    left = {n: s for n, s in left.items() if n not in away}
    more = line(*(NOW + n for n in range(200)), first=MANY + 1, parent=MANY)
    later = History({**left, **more}, {"main": PastRef(MANY + 200, branch=True)})
    hourly = {n for n in left if n <= MANY - KEEP_ALL}
    assert hourly
    assert not hourly & gone(later, now_ms=NOW + 10_000)


def test_thinning_spares_what_another_branch_keeps() -> None:
    past = with_ref(history(MANY, every_ms=1), "other", PastRef(400, branch=True))
    away = gone(past)
    assert len(away) > KEEP_ALL
    assert not away & set(range(1, 401)), "all of them are within the age of the other branch"


def test_a_rolled_back_snapshot_is_not_thinned() -> None:
    past = history(MANY, every_ms=1)
    lost = PastSnapshot(5000, 100, 101, NOW - 899)
    assert 5000 not in gone(replace(past, snapshots={**past.snapshots, 5000: lost}))


def test_snapshots_expire_in_batches() -> None:
    one_hour = {"now_ms": NOW, "batch": BATCH}
    assert not gone(history(KEEP_ALL + BATCH, every_ms=1), **one_hour)  # type: ignore[arg-type]
    assert len(gone(history(KEEP_ALL + BATCH + 1, every_ms=1), **one_hour)) == BATCH  # type: ignore[arg-type]


# ---- age


def test_the_newest_snapshot_that_is_older_than_the_limit_stays_with_the_ones_after_it() -> None:
    past = history(60, every_ms=MAX_AGE_MS // 10)
    assert gone(past) == set(range(1, 49)), "the eleventh before the head was replaced exactly the retention ago"


def test_the_head_of_an_idle_table_is_young_when_it_is_replaced() -> None:
    past = History(line(NOW - 30 * DAY_MS, NOW - 8 * DAY_MS, NOW - 1000), {"main": PastRef(3, branch=True)})
    assert gone(past) == {1}
    assert gone(past, now_ms=NOW + 7 * DAY_MS) == {1, 2}


def test_the_head_never_expires() -> None:
    past = History(line(NOW - 300 * DAY_MS), {"main": PastRef(1, branch=True)})
    assert not gone(past)


def test_as_many_as_asked_for_are_kept_whatever_their_age() -> None:
    past = history(60, every_ms=MAX_AGE_MS)
    assert gone(past, RetentionOptions(min_snapshots=30)) == set(range(1, 31))
    assert gone(replace(past, properties={"history.expire.min-snapshots-to-keep": "20"})) == set(range(1, 41))


def test_the_branch_and_then_the_table_take_precedence_over_the_options() -> None:
    properties = {
        "history.expire.max-snapshot-age-ms": str(2 * HOUR_MS),
        "history.expire.min-snapshots-to-keep": "3",
    }
    options = RetentionOptions(5 * HOUR_MS, 4)
    assert Retention.of({}, None, options) == Retention(5 * HOUR_MS, 4)
    assert Retention.of(properties, None, options) == Retention(2 * HOUR_MS, 3)
    ref = PastRef(1, branch=True, max_age_ms=3 * HOUR_MS, min_keep=9)
    assert Retention.of(properties, ref, options) == Retention(3 * HOUR_MS, 9)
    assert Retention.of(properties, ref, options, force=True) == Retention(5 * HOUR_MS, 4)
    assert Retention.of({"history.expire.max-snapshot-age-ms": "soon"}, None, RetentionOptions()) == Retention()


@pytest.mark.parametrize(
    ("properties", "options", "named"),
    [
        ({"history.expire.max-snapshot-age-ms": "5000"}, RetentionOptions(), "history.expire.max-snapshot-age-ms"),
        ({}, RetentionOptions(5000), "SNAPSHOT RETENTION"),
    ],
)
def test_a_retention_that_is_too_short_is_an_hour_and_warned_of(
    properties: dict[str, str], options: RetentionOptions, named: str
) -> None:
    assert Retention.of(properties, None, options).max_age_ms == HOUR_MS
    assert named in retention.warning_of(properties, None, options)
    assert Retention.of({}, None, RetentionOptions(5000), force=True).max_age_ms == 5000
    assert not retention.warning_of({}, None, RetentionOptions())


def test_each_branch_keeps_snapshots_by_its_own_settings_and_the_union_stays() -> None:
    main = line(*(NOW - (40 - n) * DAY_MS for n in range(1, 41)))
    side = line(NOW - 20 * DAY_MS, NOW - 19 * DAY_MS, first=101, parent=20)
    refs = {"main": PastRef(40, branch=True), "side": PastRef(102, branch=True, min_keep=4)}
    away = gone(History({**main, **side}, refs), WHOLE)
    assert not away & {101, 102, 20, 19}, "the first four of the branch"
    assert away == set(range(1, 19)) | set(range(21, 32))


# ---- refs


def test_tags_keep_their_snapshot_and_go_with_their_age() -> None:
    past = history(60, every_ms=DAY_MS)
    tagged = with_ref(past, "audit", PastRef(5, branch=False))
    assert 5 not in gone(tagged)
    ends = with_ref(past, "audit", PastRef(5, branch=False, max_ref_age_ms=50 * DAY_MS))
    found = expired(ends, ExpiryPolicy(WHOLE, "main", NOW, batch=1))
    assert found.refs == ("audit",)
    assert 5 in found.snapshots


def test_the_table_limits_the_age_of_refs_that_have_no_limit_and_never_of_main() -> None:
    past = replace(history(60, every_ms=DAY_MS), properties={"history.expire.max-ref-age-ms": str(DAY_MS)})
    past = with_ref(with_ref(past, "audit", PastRef(5, branch=False)), "side", PastRef(9, branch=True))
    past = with_ref(past, "kept", PastRef(7, branch=False, max_ref_age_ms=2**63 - 1))
    found = expired(past, ExpiryPolicy(WHOLE, "main", NOW + 9 * DAY_MS, batch=1))
    assert set(found.refs) == {"audit", "side"}
    assert 7 not in found.snapshots


def test_neither_the_tag_nor_the_branch_of_a_sink_goes_with_its_age() -> None:
    main, side = line(NOW - 90 * DAY_MS), line(NOW - 80 * DAY_MS, first=2, parent=1, sink="s")
    refs = {
        "main": PastRef(1, branch=True),
        "side": PastRef(2, branch=True, max_ref_age_ms=1),
        "calve-s": PastRef(2, branch=False, max_ref_age_ms=1),
    }
    past = History({**main, **side}, refs, sinks=frozenset({"s"}))
    assert expired(past, ExpiryPolicy(WHOLE, "main", NOW, batch=1)) == Expired()


# ---- what sinks and holds keep


def test_a_sink_at_rest_keeps_everything_after_its_newest_snapshot() -> None:
    past = history(60, every_ms=DAY_MS)
    snapshots = {n: replace(s, sink_id="s" if n in {10, 11} else None) for n, s in past.snapshots.items()}
    resting = History(snapshots, past.refs, sinks=frozenset({"s"}))
    assert gone(resting) == set(range(1, 11))
    assert gone(replace(resting, sinks=frozenset())) == set(range(1, 52))


@pytest.mark.parametrize("tag", ["calve-hold-1", "calve-consumer-name-s"])
def test_a_hold_keeps_everything_after_its_snapshot(tag: str) -> None:
    past = with_ref(history(60, every_ms=DAY_MS), tag, PastRef(30, branch=False, max_ref_age_ms=90 * DAY_MS))
    assert gone(past) == set(range(1, 30))


# ---- snapshots in no ref's ancestry


def test_a_rolled_back_snapshot_expires_a_retention_after_the_rollback() -> None:
    main = line(NOW - 30 * DAY_MS, NOW - 8 * DAY_MS)
    past = History(main, {"main": PastRef(1, branch=True)}, log=((NOW - 30 * DAY_MS, 1), (NOW - 8 * DAY_MS, 2)))
    rolled = replace(past, log=(*past.log, (NOW, 1)))
    assert not gone(rolled)
    assert not gone(rolled, now_ms=NOW + 7 * DAY_MS)
    assert gone(rolled, now_ms=NOW + 7 * DAY_MS + 1) == {2}


def test_a_staged_snapshot_expires_after_twice_the_retention() -> None:
    main = line(NOW - 40 * DAY_MS)
    staged = PastSnapshot(9, 1, 2, NOW - 14 * DAY_MS, staged=True)
    past = History({**main, 9: staged}, {"main": PastRef(1, branch=True)})
    assert not gone(past)
    assert gone(past, now_ms=NOW + 1) == {9}


def test_a_cheap_look_never_misses_what_is_due() -> None:
    policy = ExpiryPolicy(RetentionOptions(), "main", NOW)
    for count, every_ms in [(KEEP_ALL + BATCH + 1, 1), (30, DAY_MS), (200, HOUR_MS // 4), (12, MAX_AGE_MS)]:
        past = history(count, every_ms)
        oldest = min(s.timestamp_ms for s in past.snapshots.values())
        if expired(past, policy).snapshots:
            assert retention.may_be_due(count, oldest, policy, policy.retention(past, "main"))
