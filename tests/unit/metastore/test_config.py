from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from calve.errors import InvalidInput
from calve.metastore.config import DISTRIBUTION, OVERRIDE, MetastoreConfig, period
from calve.metastore.metastore import Metastore
from calve.metastore.tables import open_tables
from tests.unit.metastore.sample import DELETE_AFTER_COMMIT, GENERAL, VERSIONS_MAX


def loaded(home: Path, environment: Mapping[str, str] | None = None) -> MetastoreConfig:
    return MetastoreConfig.load(home, environment or {})


def test_a_home_folder_needs_no_configuration(tmp_path: Path) -> None:
    config = loaded(tmp_path)
    assert (config.base_path, config.relative_path, config.expiration) == (str(tmp_path), "metastore", timedelta(0))
    assert set(config.components) == {"tables", "views", "secrets", "connections", "sources", "sinks"}
    assert config.properties_of("tables")[DELETE_AFTER_COMMIT] == "true"
    with Metastore(config) as metastore:
        open_tables(metastore).modify().overwrite(GENERAL).execute()
    assert (tmp_path / "metastore/tables/dfs/tmp/nation").is_dir()
    assert (tmp_path / "metastore/catalog.db").is_file()


def test_each_layer_wins_over_those_before(tmp_path: Path) -> None:
    (tmp_path / DISTRIBUTION).write_text(
        """
        [calve.metastore.iceberg.location]
        relative_path = "distribution/iceberg"
        base_path = "/distribution"
        [calve.metastore.iceberg.common.properties]
        write.metadata.previous-versions-max = 3
        "read.split.target-size" = "10"
        """
    )
    assert loaded(tmp_path).relative_path == "distribution/iceberg"
    (tmp_path / OVERRIDE).write_text(
        """
        calve.metastore.iceberg.location.base_path = "/override"
        calve.metastore.iceberg.components.tables.location = "t"
        calve.metastore.iceberg.components.tables.properties."read.split.target-size" = 20
        calve.metastore.iceberg.components.mine.location = "mine"
        calve.metastore.config.properties."s3.endpoint" = "http://override"
        """
    )
    environment = {
        "CALVE_METASTORE__ICEBERG__LOCATION__BASE_PATH": "/environment",
        "CALVE_METASTORE__ICEBERG__EXPIRATION__PERIOD__DAYS": "7",
        "CALVE_METASTORE__ICEBERG__COMMON__PROPERTIES__WRITE__METADATA__PREVIOUS_VERSIONS_MAX": "5",
        "CALVE_METASTORE__CONFIG__PROPERTIES__S3__PATH_STYLE_ACCESS": "true",
        "CALVE_METASTORE__CATALOG__TYPE": "rest",
        "CALVE_HOME": "/elsewhere",
    }
    config = loaded(tmp_path, environment)
    assert (config.base_path, config.relative_path) == ("/environment", "distribution/iceberg")
    assert loaded(tmp_path).base_path == "/override"
    assert config.expiration == timedelta(days=7)
    assert config.components["tables"].location == "t"
    assert config.components["mine"].location == "mine"
    assert config.io_properties == {"s3.endpoint": "http://override", "s3.path-style-access": "true"}
    assert config.catalog == {"type": "rest"}
    own, common = config.properties_of("tables"), config.properties_of("views")
    assert (own[VERSIONS_MAX], own["read.split.target-size"]) == ("5", "20")
    assert (common[VERSIONS_MAX], common["read.split.target-size"]) == ("5", "10")


def test_an_empty_text_takes_a_property_away(tmp_path: Path) -> None:
    (tmp_path / OVERRIDE).write_text(
        f'calve.metastore.iceberg.components.tables.properties."{DELETE_AFTER_COMMIT}" = ""'
    )
    assert DELETE_AFTER_COMMIT not in loaded(tmp_path).properties_of("tables")
    assert loaded(tmp_path).properties_of("views")[DELETE_AFTER_COMMIT] == "true"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("calve.metastore.iceberg.location.basepath = 'x'", 'no setting "iceberg.location.basepath"'),
        ("calve.metastore.iceberg.components.tables.place = 'x'", "no setting"),
        ("metastore.iceberg.location.base_path = 'x'", "is not a setting of the metastore"),
        ("calve.metastore.iceberg.location.base_path = [1]", "cannot be a list"),
        ("calve.metastore.iceberg.location.base_path = ''", "has no value"),
        ("calve.metastore.iceberg.components.mine.properties.a = 1", "components.mine.location"),
        ("calve.metastore =", "cannot be read"),
        ("calve.metastore.iceberg.expiration.period.weeks = 1", 'has no unit "weeks"'),
        ("calve.metastore.iceberg.expiration.period.days = 'abc'", 'cannot be "abc" days'),
    ],
)
def test_what_a_file_says_wrongly_is_named(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / OVERRIDE).write_text(text)
    with pytest.raises(InvalidInput, match=problem):
        loaded(tmp_path)


def test_units_of_the_period_add_up() -> None:
    assert period({}) == timedelta(0)
    assert period({"hours": "5"}) == timedelta(hours=5)
    assert period({"hours": "5", "minutes": "10", "millis": "1"}) == timedelta(hours=5, minutes=10, milliseconds=1)
    assert period({"seconds": "1", "days": "1"}) == timedelta(days=1, seconds=1)
    assert period({"hours": "-5"}) == timedelta(hours=-5)


@pytest.mark.parametrize("unit", ["hour", "weeks", "months", "years", "DAYS", "micros", ""])
def test_other_units_are_refused(unit: str) -> None:
    with pytest.raises(InvalidInput, match="the expiration period has no unit") as caught:
        period({unit: "1"})
    assert caught.value.hint == "Units are days, hours, millis, minutes, seconds."


def test_a_store_without_a_place_for_the_catalog_needs_one(tmp_path: Path) -> None:
    environment = {"CALVE_METASTORE__ICEBERG__LOCATION__BASE_PATH": "s3://bucket/calve"}
    metastore = Metastore(loaded(tmp_path, environment))
    assert metastore.location == "s3://bucket/calve/metastore"
    with pytest.raises(InvalidInput, match="the metastore has no catalog") as caught:
        open_tables(metastore)
    assert "calve.metastore.catalog.uri" in caught.value.hint


def test_the_catalog_can_be_another_sqlite_file(tmp_path: Path) -> None:
    file = tmp_path / "shared.db"
    environment = {
        "CALVE_METASTORE__CATALOG__TYPE": "sql",
        "CALVE_METASTORE__CATALOG__URI": f"sqlite:///{file}",
        "CALVE_METASTORE__CATALOG__NAMESPACE": "prod.meta",
    }
    with Metastore(loaded(tmp_path, environment)) as metastore:
        tables = open_tables(metastore)
        tables.modify().overwrite(GENERAL).execute()
        assert tables.see().table.name() == ("prod", "meta", "tables")
    assert file.is_file()
    assert not (tmp_path / "metastore/catalog.db").exists()
