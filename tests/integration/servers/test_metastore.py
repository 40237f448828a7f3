"""Components whose tables are in a REST catalog and whose files are in S3."""

from pathlib import Path

from calve.metastore import filters as f
from calve.metastore.config import ComponentConfig, MetastoreConfig
from calve.metastore.metastore import Metastore
from calve.metastore.tables import MetadataType, open_tables
from tests.support.servers.lakehouse import BUCKET, Lakehouse, new_namespace
from tests.unit.analyze.trees import fresh_units, in_order, put, put_tree, refreshed
from tests.unit.metastore.sample import DELETE_AFTER_COMMIT, GENERAL, SEGMENT, VERSIONS_MAX


def test_a_metastore_in_a_rest_catalog_is_filled_changed_and_expires(lakehouse: Lakehouse, tmp_path: Path) -> None:
    put_tree(tmp_path / "in")
    name = new_namespace()
    catalog = {key: value for key, value in lakehouse.properties.items() if key in {"type", "uri"}}
    config = MetastoreConfig(
        base_path=f"s3://{BUCKET}/{name}",
        namespace=name,
        catalog=catalog,
        io_properties={key: value for key, value in lakehouse.properties.items() if key not in catalog},
        common_properties={DELETE_AFTER_COMMIT: "true", VERSIONS_MAX: "2"},
        components={"tables": ComponentConfig("tables")},
    )
    with Metastore(config) as metastore:
        tables = open_tables(metastore)
        refreshed(tables, tmp_path / "in")
        put(tmp_path / "in" / "d" / "new.parquet", [1, 2])
        refreshed(tables, tmp_path / "in")
        assert in_order(tables.read()) == fresh_units(tmp_path / "in", tmp_path / "other")
        old = tables.see().files
        tables.modify().overwrite(GENERAL, SEGMENT).delete(f.ne("table_name", "nation")).execute()
        tables.modify().overwrite(SEGMENT).execute()
        tables.modify().overwrite(SEGMENT).execute()
        assert [unit.table_name for unit in tables.read(MetadataType.TABLE)] == ["nation"]
        seen = tables.see()
        assert len(seen.table.metadata.snapshots) == 2
        assert not any(seen.table.io.new_input(file.path).exists() for file in old)
