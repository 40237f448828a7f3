from calve.iceberg.snapshot.expiry import BATCH, HOUR_MS, KEEP_ALL, MAX_AGE_MS, Aged, Retention, expired

NOW = 1_700_000_000_000 // HOUR_MS * HOUR_MS
MANY = 1000


def history(count: int, every_ms: int) -> list[Aged]:
    """Snapshots 1 to `count`, the last of them now."""
    return [Aged(n, n, NOW - (count - n) * every_ms) for n in range(1, count + 1)]


def test_a_short_young_history_is_kept_whole() -> None:
    assert expired(history(KEEP_ALL, every_ms=1000), set(), Retention(), NOW) == ()


def test_of_many_young_snapshots_the_newest_and_one_each_hour_remain() -> None:
    snapshots = history(MANY, every_ms=60_000)
    gone = set(expired(snapshots, {MANY}, Retention(keep_all=100), NOW))
    kept = [s for s in snapshots if s.snapshot_id not in gone]
    assert [s.snapshot_id for s in kept[-100:]] == list(range(MANY - 99, MANY + 1))
    hours = [s.timestamp_ms // HOUR_MS for s in kept[:-100]]
    assert sorted(set(hours)) == hours
    assert hours == sorted({s.timestamp_ms // HOUR_MS for s in snapshots[:-100]})


def test_what_was_kept_for_an_hour_stays_kept() -> None:
    snapshots = history(MANY, every_ms=60_000)
    first = set(expired(snapshots, set(), Retention(), NOW))
    later = [s for s in snapshots if s.snapshot_id not in first]
    later += [Aged(n, n, NOW + n) for n in range(MANY + 1, MANY + 200)]
    hourly = {s.snapshot_id for s in later if s.snapshot_id <= MANY - KEEP_ALL}
    assert not hourly & set(expired(later, set(), Retention(), NOW + 10_000))


def test_old_snapshots_expire_however_few_there_are() -> None:
    snapshots = history(60, every_ms=MAX_AGE_MS // 10)
    assert expired(snapshots, set(), Retention(), NOW) == tuple(range(1, 50))


def test_the_table_and_then_its_branch_say_how_old_is_old() -> None:
    properties = {"history.expire.max-snapshot-age-ms": "5000", "history.expire.min-snapshots-to-keep": "3"}
    assert Retention.of(properties, max_age_ms=None, min_keep=None) == Retention(5000, 3)
    assert Retention.of(properties, max_age_ms=7, min_keep=9) == Retention(7, 9)
    assert Retention.of({"history.expire.max-snapshot-age-ms": "soon"}, None, None) == Retention()


def test_as_many_as_the_table_asks_for_are_kept_whatever_their_age() -> None:
    snapshots = history(60, every_ms=MAX_AGE_MS)
    assert expired(snapshots, set(), Retention(min_keep=30), NOW) == tuple(range(1, 31))


def test_referenced_snapshots_never_expire() -> None:
    snapshots = history(MANY, every_ms=1)
    gone = expired(snapshots, {1, 500}, Retention(), NOW)
    assert not {1, 500} & set(gone)
    assert len(gone) == MANY - KEEP_ALL - 2


def test_snapshots_expire_in_batches() -> None:
    assert expired(history(KEEP_ALL + BATCH, every_ms=1), set(), Retention(), NOW) == ()
    assert len(expired(history(KEEP_ALL + BATCH + 1, every_ms=1), set(), Retention(), NOW)) == BATCH
