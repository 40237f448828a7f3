"""A metastore in a folder, and units of the table dfs.tmp.nation."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from calve.clock import Clock, IdSource
from calve.metastore.config import ComponentConfig, MetastoreConfig, period
from calve.metastore.metastore import Metastore
from calve.metastore.tables import DEFAULT_SEGMENT, GENERAL_INFO, MetadataType, TableId, TableUnit

NATION = TableId("dfs", "tmp", "nation")

DELETE_AFTER_COMMIT = "write.metadata.delete-after-commit.enabled"
VERSIONS_MAX = "write.metadata.previous-versions-max"

GENERAL = TableUnit(
    storage_plugin="dfs",
    workspace="tmp",
    table_name="nation",
    metadata_type=MetadataType.TABLE,
    metadata_key=GENERAL_INFO,
    table_type="PARQUET",
    owner="bob",
    location="/tmp/nation",  # noqa: S108 - a name, no file
    interesting_columns=("n_nationkey",),
    last_modified_time=1,
)
SEGMENT = TableUnit(
    storage_plugin="dfs",
    workspace="tmp",
    table_name="nation",
    metadata_type=MetadataType.SEGMENT,
    metadata_key=DEFAULT_SEGMENT,
    metadata_identifier=DEFAULT_SEGMENT,
    location="/tmp/nation",  # noqa: S108
    last_modified_time=1,
)


def part(kind: MetadataType, identifier: str, key: str = DEFAULT_SEGMENT, *, index: int | None = None) -> TableUnit:
    """A unit below a segment."""
    return TableUnit(
        storage_plugin="dfs",
        workspace="tmp",
        table_name="nation",
        metadata_type=kind,
        metadata_key=key,
        metadata_identifier=identifier,
        row_group_index=index,
    )


def segment(key: str) -> TableUnit:
    """A top-level segment."""
    return replace(SEGMENT, metadata_key=key, metadata_identifier=key)


def config_at(
    folder: Path,
    common: Mapping[str, str] | None = None,
    tables: Mapping[str, str] | None = None,
    expiration: Mapping[str, str] | None = None,
) -> MetastoreConfig:
    """A configuration with all components."""
    names = ("views", "secrets", "connections", "sources", "sinks")
    return MetastoreConfig(
        base_path=str(folder),
        common_properties=dict(common or {}),
        expiration=period(expiration or {}),
        components={
            "tables": ComponentConfig("tables", dict(tables or {})),
            **{name: ComponentConfig(name) for name in names},
        },
    )


def metastore_at(
    folder: Path, clock: Clock | None = None, ids: IdSource | None = None, **given: Mapping[str, str]
) -> Metastore:
    """A metastore in a folder."""
    return Metastore(config_at(folder, **given), clock=clock, ids=ids)


class SetClock:
    """A clock that is set by hand."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


def files_below(folder: Path, pattern: str = "*") -> list[Path]:
    """All files in a folder and in the folders below."""
    return sorted(path for path in folder.rglob(pattern) if path.is_file())
