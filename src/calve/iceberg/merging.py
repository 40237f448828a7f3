"""Which manifests are merged (pure).

Every commit adds a manifest or two, and every commit writes the list of all manifests again. Manifests of one kind are
merged in tiers: those with fewer files than `FAN_IN` when there are `FAN_IN` of them, the results when there are that
many again. A manifest list stays short, and each entry is rewritten once per tier.

Only manifests that calve wrote are merged: others may hold fields that pyiceberg does not read.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyiceberg.manifest import ManifestContent, ManifestFile

from calve.iceberg.manifests import OWN_PREFIX, TARGET_BYTES

FAN_IN = 50


@dataclass(frozen=True)
class MergeGroup:
    """Manifests that become one."""

    content: ManifestContent
    spec_id: int
    members: tuple[ManifestFile, ...]


def merge_groups(manifests: Iterable[ManifestFile]) -> tuple[MergeGroup, ...]:
    """What is to be merged now; empty most of the time."""
    tiers: dict[tuple[ManifestContent, int, int], list[ManifestFile]] = {}
    for manifest in manifests:
        if _mergeable(manifest):
            key = (manifest.content, manifest.partition_spec_id, _tier(manifest))
            tiers.setdefault(key, []).append(manifest)
    return tuple(
        MergeGroup(content, spec_id, tuple(members))
        for (content, spec_id, _), tier in tiers.items()
        if len(tier) >= FAN_IN
        for members in _split(tier)
        if len(members) > 1
    )


def _mergeable(manifest: ManifestFile) -> bool:
    return manifest.manifest_length < TARGET_BYTES and manifest.manifest_path.rpartition("/")[2].startswith(OWN_PREFIX)


def _tier(manifest: ManifestFile) -> int:
    files = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
    tier = 0
    while files >= FAN_IN:
        files //= FAN_IN
        tier += 1
    return tier


def _split(tier: Sequence[ManifestFile]) -> Iterable[tuple[ManifestFile, ...]]:
    """The members of a tier in groups that give a manifest of about the target size each."""
    group: list[ManifestFile] = []
    size = 0
    for manifest in tier:
        if group and size + manifest.manifest_length > TARGET_BYTES:
            yield tuple(group)
            group, size = [], 0
        group.append(manifest)
        size += manifest.manifest_length
    yield tuple(group)
