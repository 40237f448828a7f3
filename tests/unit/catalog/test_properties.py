from calve.catalog.properties import catalog_properties
from calve.catalog.rest import GIVEN_STORE
from calve.model.connection import AwsConnection, CatalogConnection, CatalogType, SecretRef

SECRETS = {"1": "one", "2": "two"}
CATALOGS = AwsConnection("catalog-key", SecretRef("1", "a"), SecretRef("1", "t"), region="eu-west-1")
STORES = AwsConnection("store-key", SecretRef("2", "b"), region="eu-west-3", endpoint="http://store")


def reveal(reference: SecretRef) -> str:
    return SECRETS[reference.uid]


def test_s3_tables_is_a_rest_catalog_signed_for_its_service_in_the_default_region() -> None:
    found = catalog_properties(
        CatalogConnection(CatalogType.S3TABLES, warehouse="arn:aws:s3tables:us-east-1:1:bucket/b", aws=AwsConnection()),
        None,
        reveal,
    )
    assert found == {
        "type": "rest",
        "uri": "https://s3tables.us-east-1.amazonaws.com/iceberg",
        "warehouse": "arn:aws:s3tables:us-east-1:1:bucket/b",
        "rest.sigv4-enabled": "true",
        "rest.signing-name": "s3tables",
        "rest.signing-region": "us-east-1",
        "client.region": "us-east-1",
    }


def test_the_store_has_credentials_of_its_own_and_nothing_of_the_catalogs() -> None:
    found = catalog_properties(CatalogConnection(CatalogType.REST, uri="http://c", aws=CATALOGS), STORES, reveal)
    assert {name: value for name, value in found.items() if name.startswith(("client.", "s3.", "calve."))} == {
        "client.access-key-id": "catalog-key",
        "client.secret-access-key": "one",
        "client.session-token": "one",
        "client.region": "eu-west-1",
        "s3.access-key-id": "store-key",
        "s3.secret-access-key": "two",
        "s3.session-token": "",
        "s3.region": "eu-west-3",
        "s3.endpoint": "http://store",
        GIVEN_STORE: "true",
    }


def test_a_catalog_with_a_login_is_not_signed() -> None:
    connection = CatalogConnection(CatalogType.REST, uri="http://c", aws=CATALOGS, token=SecretRef("2", "b"))
    found = catalog_properties(connection, None, reveal)
    assert found["token"] == SECRETS["2"]
    assert "rest.sigv4-enabled" not in found
    assert found["client.access-key-id"] == "catalog-key"


def test_the_password_of_a_database_goes_into_its_address() -> None:
    connection = CatalogConnection(
        CatalogType.SQL, "postgresql://h/d", "file:///w", user="u", password=SecretRef("2", "b")
    )
    assert catalog_properties(connection, None, reveal)["uri"] == "postgresql://u:two@h/d"


def test_an_embedded_catalog_needs_nothing() -> None:
    assert catalog_properties(CatalogConnection(CatalogType.EMBEDDED), None, reveal) == {}
