"""Which files are rewritten together."""

from dataclasses import replace

from calve.iceberg.planning.compaction_cost import OPEN_FILE, REWRITE_ROW, SCAN_ROW
from calve.iceberg.planning.compaction_groups import (
    AUTOMATIC,
    BY_HAND,
    CompactionPolicy,
    ages_by,
    due_groups,
    policy_of,
)
from calve.model.scan import DeleteFile, DeleteKind, ScanFile
from calve.model.spec import CompactionOptions

MB = 1_000_000
TARGET = 512 * MB
EIGHT = replace(AUTOMATIC, fan=8)


def file(
    name: str, size: int = MB // 2, rows: int = 10_000, deletes: tuple[DeleteFile, ...] = (), day: int | None = None
) -> ScanFile:
    partition = () if day is None else (day,)
    return ScanFile(name, size, rows, 1, deletes=deletes, spec_id=len(partition), partition=partition)


def deletes(name: str, rows: int) -> DeleteFile:
    return DeleteFile(DeleteKind.POSITION, name, 100, rows, 2)


def names(files: list[ScanFile], policy: CompactionPolicy = AUTOMATIC, age: float = 0.0) -> list[str]:
    return [" ".join(f.path for f in group) for group in due_groups(files, TARGET, policy, lambda _: age).groups]


def test_small_files_of_one_tier_are_joined_when_there_are_many() -> None:
    files = [file(f"s{n:02}") for n in range(23)]
    large = [file(f"l{n:02}", 20 * MB, 400_000) for n in range(23)]
    assert names([*files, *large]) == [], "nobody has read them yet"
    assert names([*files, *large, file("s23")]) == [" ".join(f"s{n:02}" for n in range(24))]


def test_small_files_are_joined_as_soon_as_reads_lost_what_that_costs() -> None:
    files = [file(f"s{n}") for n in range(8)]
    lost_per_hour = AUTOMATIC.reads_per_hour * OPEN_FILE
    worth = 10_000 * (SCAN_ROW + REWRITE_ROW) / lost_per_hour * 3600
    assert names(files, age=0.9 * worth) == []
    assert names(files, age=1.1 * worth) == ["s0 s1 s2 s3 s4 s5 s6 s7"]
    assert names(files[:7], age=100 * worth) == [], "seven are few"
    assert names(files, replace(AUTOMATIC, reads_per_hour=0), age=100 * worth) == [], "nobody reads them"


def test_every_row_is_written_again_a_few_times_at_most() -> None:
    sizes: list[int] = []
    written = 0
    for _ in range(4096):
        sizes.append(MB // 2)
        for group in due_groups([file(str(n), s) for n, s in enumerate(sizes)], TARGET, AUTOMATIC).groups:
            joined = sum(f.size for f in group)
            written += joined
            gone = {int(f.path) for f in group}
            sizes = [size for n, size in enumerate(sizes) if n not in gone] + [joined]
    assert len(sizes) < 120
    assert written <= 3 * 4096 * MB // 2


def test_files_of_different_partitions_are_never_joined() -> None:
    files = [file(f"{day}-{n}", day=day) for n in range(8) for day in (1, 2)]
    assert names(files, EIGHT) == ["1-0 1-1 1-2 1-3 1-4 1-5 1-6 1-7", "2-0 2-1 2-2 2-3 2-4 2-5 2-6 2-7"]
    assert names([file(f"{day}", day=day) for day in range(20)]) == []


def test_a_file_with_many_deleted_rows_is_written_anew_and_takes_smaller_ones_with_it() -> None:
    worn = file("worn", 100 * MB, 1_000_000, (deletes("d", 310_000),))
    assert names([file("worn", 100 * MB, 1_000_000, (deletes("d", 290_000),))]) == []
    assert names([worn]) == ["worn"]
    others = [file("small"), file("larger", 380 * MB, 3_000_000)]
    assert names([worn, *others]) == ["small worn"]


def test_deletes_of_several_files_count_in_proportion_to_their_rows() -> None:
    shared = deletes("d", 450_000)
    files = [file("a", 400 * MB, 1_000_000, (shared,)), file("b", 400 * MB, 500_000, (shared,))]
    assert names(files) == ["a", "b"], "three tenths of each"
    assert names([*files, file("c", 400 * MB, 500_000, (shared,))]) == []


def test_a_small_table_is_not_written_anew_with_every_batch() -> None:
    assert names([file("a", rows=1000, deletes=(deletes("d", 900),)), file("b")]) == []


def test_by_hand_everything_is_joined_that_is_small_or_has_deletes() -> None:
    good = file("good", 500 * MB, 5_000_000)
    assert names([good, file("a")], BY_HAND) == []
    assert names([good, file("a"), file("b", 30 * MB)], BY_HAND) == ["a b"]
    assert names([file("worn", 500 * MB, 5_000_000, (deletes("d", 1),)), file("a")], BY_HAND) == ["worn"]


def test_files_of_a_large_table_have_the_target_size_and_those_of_a_small_one_are_some() -> None:
    large = due_groups([file(f"{n:02}", 200 * MB) for n in range(40)], TARGET, BY_HAND)
    assert (large.file_size, {len(group) for group in large.groups}) == (TARGET, {2})
    small = due_groups([file(f"{n}", 5 * MB) for n in range(40)], TARGET, BY_HAND)
    assert (small.file_size, [len(group) for group in small.groups]) == (25 * MB, [40]), "sorted together"
    assert due_groups([file(f"{n}", 24 * MB) for n in range(8)], TARGET, BY_HAND).groups == (), "eight are good"
    assert due_groups([file("a"), file("b")], TARGET, BY_HAND).file_size == 16 << 20


def test_a_round_is_bounded_and_says_that_there_is_more() -> None:
    files = [file(f"{day}-{n}", day=day) for day in range(4) for n in range(2)]
    found = due_groups(files, TARGET, CompactionPolicy(deleted_share=0, fan=2, rows=50_000, tiers=False))
    assert (len(found.groups), found.files, found.rows, found.more) == (2, 4, 40_000, True)
    single = due_groups(files, TARGET, CompactionPolicy(deleted_share=0, fan=2, rows=1, tiers=False))
    assert (len(single.groups), single.more) == (1, True), "a round does something"


def test_a_file_is_rewritten_as_soon_as_reads_lost_to_its_deletes_what_that_costs() -> None:
    def worn(rows: int) -> list[ScanFile]:
        return [file("worn", 100 * MB, 1_000_000, (deletes("d", rows),))]

    hour = 3600.0
    assert names(worn(100_000), age=hour / 10) == []
    assert names(worn(100_000), age=hour) == ["worn"]
    assert names(worn(200_000), age=hour / 4) == ["worn"], "more deletes, earlier"
    assert names(worn(100_000), replace(AUTOMATIC, reads_per_hour=600), age=hour / 10) == ["worn"], "or more reads"
    assert names(worn(40_000), age=1000 * hour) == [], "a few are left, however many reads there were"


def test_what_a_sink_states_takes_the_place_of_costs() -> None:
    worn = [file("worn", 100 * MB, 1_000_000, (deletes("d", 150_000),))]
    small = [file(f"s{n}") for n in range(4)]
    year = 365 * 24 * 3600.0
    assert names(worn, policy_of(CompactionOptions(deleted_share=0.16)), age=year) == []
    assert names(worn, policy_of(CompactionOptions(deleted_share=0.15))) == ["worn"]
    assert names(small, policy_of(CompactionOptions(small_files=5)), age=year) == []
    assert names(small, policy_of(CompactionOptions(small_files=4))) == ["s0 s1 s2 s3"]
    assert names(worn, policy_of(CompactionOptions(reads_per_hour=0)), age=year) == []
    assert policy_of(CompactionOptions()) == AUTOMATIC


def test_files_are_as_old_as_the_first_snapshot_that_has_them() -> None:
    age_of = ages_by([(9, 90_000), (3, 30_000), (5, 50_000)], 100_000)

    def aged(sequence: int) -> float:
        return age_of(ScanFile("f", MB, 1, sequence))

    assert [aged(sequence) for sequence in (3, 4, 5, 9)] == [70, 50, 50, 10]
    assert aged(1) == 70, "as old as what is left of the history"
    assert aged(10) == 0, "not in it yet"


def test_what_is_put_off_waits_for_twice_as_many_files_and_changes() -> None:
    files = [file(f"s{n:02}") for n in range(48)]
    assert names(files[:47], AUTOMATIC.put_off, age=1e9) == [], "whatever reads have lost"
    assert names(files, AUTOMATIC.put_off) == [" ".join(f"s{n:02}" for n in range(48))]
    worn = [file("worn", 100 * MB, 1_000_000, (deletes("d", rows),)) for rows in (500_000, 520_000)]
    assert names(worn[:1], AUTOMATIC.put_off, age=1e9) == []
    assert names(worn[1:], AUTOMATIC.put_off) == ["worn"], "seven tenths of seven tenths are left"


def test_what_would_be_rewritten_even_if_it_were_put_off_is_overdue() -> None:
    def overdue(files: list[ScanFile], policy: CompactionPolicy = AUTOMATIC) -> bool:
        return due_groups(files, TARGET, policy).overdue

    files = [file(f"s{n:02}") for n in range(96)]
    assert [overdue(files[:number]) for number in (23, 24, 47, 48)] == [False, False, False, True]
    assert [overdue(files[:number], AUTOMATIC.put_off) for number in (48, 95, 96)] == [False, False, True]
    worn = [file("worn", 100 * MB, 1_000_000, (deletes("d", rows),)) for rows in (310_000, 520_000, 770_000)]
    assert [overdue([one]) for one in worn] == [False, True, True]
    assert [overdue([one], AUTOMATIC.put_off) for one in worn] == [False, False, True]
