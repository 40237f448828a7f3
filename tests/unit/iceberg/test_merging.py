from pyiceberg.manifest import ManifestContent, ManifestFile

from calve.iceberg.files.manifests import TARGET_BYTES
from calve.iceberg.snapshot.draft import FAN_IN, merge_groups

DATA, DELETES = ManifestContent.DATA, ManifestContent.DELETES


def manifest(
    number: int, files: int = 1, content: ManifestContent = DATA, spec_id: int = 0, length: int = 4000
) -> ManifestFile:
    return ManifestFile.from_args(
        manifest_path=f"s3://bucket/t/metadata/calve-{number}.avro",
        manifest_length=length,
        partition_spec_id=spec_id,
        content=content,
        added_files_count=files,
        existing_files_count=0,
    )


def test_few_manifests_are_left_alone() -> None:
    assert merge_groups(manifest(n) for n in range(FAN_IN - 1)) == ()


def test_data_and_deletes_are_merged_apart() -> None:
    both = [manifest(n, content=content) for n in range(FAN_IN) for content in (DATA, DELETES)]
    groups = merge_groups(both)
    assert [(g.content, len(g.members)) for g in groups] == [(DATA, FAN_IN), (DELETES, FAN_IN)]


def test_specs_are_merged_apart() -> None:
    assert merge_groups(manifest(n, spec_id=n % 2) for n in range(FAN_IN)) == ()
    assert {g.spec_id for g in merge_groups(manifest(n, spec_id=n % 2) for n in range(2 * FAN_IN))} == {0, 1}


def test_merged_manifests_are_not_merged_again_with_small_ones() -> None:
    merged = [manifest(1000 + n, files=FAN_IN) for n in range(10)]
    small = [manifest(n) for n in range(FAN_IN)]
    (group,) = merge_groups(merged + small)
    assert list(group.members) == small


def test_merged_manifests_are_merged_when_there_are_many_of_them() -> None:
    (group,) = merge_groups(manifest(n, files=FAN_IN) for n in range(FAN_IN))
    assert len(group.members) == FAN_IN


def test_manifests_of_others_are_left_alone() -> None:
    foreign = [
        ManifestFile.from_args(
            manifest_path=f"s3://bucket/t/metadata/{n}-m0.avro",
            manifest_length=10,
            partition_spec_id=0,
            content=DATA,
            added_files_count=1,
            existing_files_count=0,
        )
        for n in range(3 * FAN_IN)
    ]
    assert merge_groups(foreign) == ()


def test_manifests_are_merged_up_to_the_target_size() -> None:
    groups = merge_groups(manifest(n, length=TARGET_BYTES // 10) for n in range(FAN_IN))
    assert [len(g.members) for g in groups] == [10] * 5
    assert merge_groups(manifest(n, length=TARGET_BYTES) for n in range(FAN_IN)) == ()
    assert merge_groups(manifest(n, length=TARGET_BYTES - 1) for n in range(FAN_IN)) == ()
