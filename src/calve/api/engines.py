"""`calve connect-info`: how other engines read a table, as statements to paste.

A recipe is made from the definition of the catalog and from the table itself. Secrets appear as placeholders with their
names, `<secret name>`; nothing here looks them up. The tests run the recipes of DuckDB, pyiceberg, Polars and Spark;
docs/engines.md shows them.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, quote_plus, urlsplit

from calve.catalog.connect import sqlite_uri
from calve.catalog.properties import DEFAULT_REGION, catalog_properties
from calve.catalog.version_hint import VERSION_HINT
from calve.definitions.workplace import Workplace
from calve.iceberg.loading import load_table
from calve.model.connection import (
    DEFAULT_CATALOG_NAME,
    AwsConnection,
    CatalogConnection,
    CatalogType,
    Login,
    SecretRef,
)
from calve.model.engine import ReadingEngine
from calve.model.spec import TableName
from calve.pipeline.lakes import chosen_lake
from calve.plan.connections import plan_connection
from calve.plan.lookup import required_connection
from calve.plan.sinks import plan_target
from calve.sql.grammar.cursor import Cursor
from calve.sql.names import FieldPath, Identifier, is_plain, quoted_name
from calve.sql.statements import ConnectionKind, CreateConnection, CreateSink
from calve.sql.text import SqlText
from calve.statements.tables import table_named
from calve.storage.local_folders import location_of

EMBEDDED = CatalogConnection(CatalogType.EMBEDDED)
SPARK_RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
AWS_BUNDLE = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"


@dataclass(frozen=True)
class ReadableTable:
    """What a recipe is made from."""

    name: TableName
    catalog: CatalogConnection
    store: AwsConnection | None
    """Credentials of the files, if they differ from the catalog's."""
    home: Path
    location: str
    metadata_location: str
    label: str = "lake"
    """The name of the catalog in the recipes."""

    @property
    def files(self) -> AwsConnection | None:
        """The credentials of the files."""
        return self.store or self.catalog.aws

    @property
    def folder(self) -> str:
        """The table's folder, as a path if it is on this machine."""
        return self.location.removeprefix("file://")

    @property
    def namespace(self) -> str:
        return ".".join(self.name.namespace)


@dataclass(frozen=True)
class Recipe:
    """A text to paste, in some language."""

    engine: ReadingEngine
    language: str
    text: str
    note: str = ""


def readable_table(place: Workplace, subject: str, connection: str | None) -> ReadableTable:
    """The table of a name or of a sink. Raises InvalidInput if it does not exist yet."""
    definitions = place.definitions()
    path = _path(subject)
    if connection is not None:
        ref, sink = chosen_lake(place.home, connection).table(subject), None
    else:
        found = table_named(place, path)
        ref, sink = found.ref, found.sink
    catalog, store, label = EMBEDDED, None, "lake"
    if sink is not None and isinstance(sink.statement, CreateSink):
        catalog, store = plan_target(sink.statement, definitions)
        label = sink.statement.target.catalog.name
    else:
        name = connection or (path.parts[0].name if ref.lake.properties else None)
        if name is not None:
            defined = required_connection(definitions, Identifier.exact(name), ConnectionKind.ICEBERG_CATALOG)
            statement = defined.statement
            planned = plan_connection(statement, definitions) if isinstance(statement, CreateConnection) else None
            catalog, label = planned if isinstance(planned, CatalogConnection) else EMBEDDED, defined.name
    table = load_table(ref.lake.open(), ref.name)
    plain = label if is_plain(label) else "lake"
    return ReadableTable(
        ref.name, catalog, store, place.home, table.metadata.location, table.metadata_location, plain.lower()
    )


def _path(subject: str) -> FieldPath:
    if all(is_plain(part) for part in subject.split(".")):
        return Cursor(SqlText(subject)).field_path("the name of a table")
    return FieldPath(tuple(Identifier.exact(part) for part in subject.split(".")))


def recipes(table: ReadableTable) -> list[Recipe]:
    """The recipes of all engines."""
    return [recipe(table, engine) for engine in ReadingEngine]


def recipe(table: ReadableTable, engine: ReadingEngine) -> Recipe:
    """The recipe of one engine."""
    return _MAKERS[engine](table)


# ---- secrets and texts


def placeholder(secret: SecretRef) -> str:
    """What stands in a recipe in place of a secret."""
    return f"<secret {secret.name}>"


def _text(value: str) -> str:
    """A text literal of SQL."""
    return "'" + value.replace("'", "''") + "'"


def _dotted(*parts: str) -> str:
    return ".".join(part if is_plain(part) else quoted_name(part) for part in parts)


def _python(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _properties(table: ReadableTable) -> dict[str, str]:
    """The properties of pyiceberg's catalog, with placeholders."""
    catalog = table.catalog
    if catalog.type is CatalogType.EMBEDDED:
        uri, warehouse = sqlite_uri(table.home / "catalog.db"), location_of(table.home / "warehouse")
        return {"type": "sql", "uri": uri, "warehouse": warehouse}
    shown: dict[str, str] = {}

    def reveal(secret: SecretRef) -> str:
        text = placeholder(secret)
        shown.update(dict.fromkeys((quote_plus(text), quote(text), quote(text, safe=" +")), text))
        return text

    found = catalog_properties(catalog, table.store, reveal)
    found = {name: value for name, value in found.items() if not name.startswith("calve.") and name != "catalog-name"}
    if "header.Authorization" in found and catalog.password is not None:
        found["header.Authorization"] = f"Basic <base64 of {catalog.user}:{placeholder(catalog.password)}>"
    for encoded, plain in shown.items():
        found = {name: value.replace(encoded, plain) for name, value in found.items()}
    return {name: value for name, value in found.items() if value != ""}


# ---- pyiceberg, Polars

_NO_EQUALITY = (
    "pyiceberg and Polars read deletes by position, calve's default, and no equality deletes: "
    "calve maintain --only convert replaces those."
)


def _load(table: ReadableTable) -> str:
    properties = _properties(table)
    name = table.catalog.catalog_name or DEFAULT_CATALOG_NAME
    given = "".join(f"    {_python(key)}: {_python(value)},\n" for key, value in properties.items())
    identifier = ", ".join(_python(part) for part in (*table.name.namespace, table.name.name))
    return (
        "from pyiceberg.catalog import load_catalog\n\n"
        f"catalog = load_catalog({_python(name)}, **{{\n{given}}})\n"
        f"table = catalog.load_table(({identifier}))\n"
    )


def _pyiceberg(table: ReadableTable) -> Recipe:
    return Recipe(ReadingEngine.PYICEBERG, "python", f"{_load(table)}print(table.scan().to_arrow())\n", _NO_EQUALITY)


def _polars(table: ReadableTable) -> Recipe:
    text = f"import polars\n{_load(table)}print(polars.scan_iceberg(table).collect())\n"
    return Recipe(ReadingEngine.POLARS, "python", text, _NO_EQUALITY)


# ---- DuckDB


def _duckdb(table: ReadableTable) -> Recipe:
    lines = ["INSTALL iceberg; LOAD iceberg;"]
    catalog = table.catalog
    note = ""
    if catalog.type in {CatalogType.REST, CatalogType.S3TABLES, CatalogType.GLUE}:
        lines += _duckdb_store(table.files)
        lines += _duckdb_attach(table)
        lines.append(f"SELECT * FROM {_dotted(table.label, *table.name.namespace, table.name.name)};")
        if catalog.type is CatalogType.GLUE:
            note = "DuckDB finds a Glue catalog by the id of its AWS account."
    elif catalog.type is CatalogType.EMBEDDED:
        lines.append(f"SELECT * FROM iceberg_scan({_text(table.folder)});")
        note = f"DuckDB finds the newest snapshot by {VERSION_HINT}, which calve keeps."
    else:
        lines += _duckdb_store(table.files)
        lines.append(f"SELECT * FROM iceberg_scan({_text(table.metadata_location.removeprefix('file://'))});")
        note = "DuckDB has no client for this catalog: this reads the present snapshot; ask again for a newer one."
    return Recipe(ReadingEngine.DUCKDB, "sql", "\n".join(lines) + "\n", note)


def _duckdb_store(aws: AwsConnection | None) -> list[str]:
    if aws is None:
        return []
    if aws.access_key_id is not None and aws.secret_access_key is not None:
        given = [("KEY_ID", aws.access_key_id), ("SECRET", placeholder(aws.secret_access_key))]
        if aws.session_token is not None:
            given.append(("SESSION_TOKEN", placeholder(aws.session_token)))
    else:
        given = [("PROVIDER", "credential_chain")]
        if aws.role_arn is not None:
            given.append(("ASSUME_ROLE_ARN", aws.role_arn))
    given.append(("REGION", aws.region or DEFAULT_REGION))
    words = [f"{name} {_text(value)}" for name, value in given]
    if aws.endpoint:
        address = urlsplit(aws.endpoint)
        words += [
            f"ENDPOINT {_text(address.netloc)}",
            "URL_STYLE 'path'",
            f"USE_SSL {str(address.scheme == 'https').lower()}",
        ]
    loads = ["INSTALL httpfs; LOAD httpfs;"]
    if given[0][0] == "PROVIDER":
        loads.append("INSTALL aws; LOAD aws;")
    return [*loads, f"CREATE SECRET store (TYPE s3, {', '.join(words)});"]


def _duckdb_attach(table: ReadableTable) -> list[str]:
    catalog = table.catalog
    label = table.label if is_plain(table.label) else quoted_name(table.label)
    if catalog.type is CatalogType.S3TABLES:
        return [f"ATTACH {_text(catalog.warehouse or '')} AS {label} (TYPE iceberg, ENDPOINT_TYPE s3_tables);"]
    if catalog.type is CatalogType.GLUE:
        return [f"ATTACH '<AWS account id>' AS {label} (TYPE iceberg, ENDPOINT_TYPE glue);"]
    attach = f"ATTACH {_text(catalog.warehouse or '')} AS {label} (TYPE iceberg, ENDPOINT {_text(catalog.uri or '')}"
    if catalog.aws is not None and not (catalog.password or catalog.credential or catalog.token):
        return [f"{attach}, AUTHORIZATION_TYPE 'sigv4');"]
    login = _duckdb_login(catalog)
    if login is None:
        return [f"{attach}, AUTHORIZATION_TYPE 'none');"]
    return [f"CREATE SECRET login (TYPE iceberg, {login});", f"{attach}, SECRET login);"]


def _duckdb_login(catalog: CatalogConnection) -> str | None:
    if catalog.token is not None:
        return f"TOKEN {_text(placeholder(catalog.token))}"
    words: list[str] = []
    if catalog.credential is not None:
        name = placeholder(catalog.credential)
        words = [f"CLIENT_ID {_text(f'{name} before the colon')}", f"CLIENT_SECRET {_text(f'{name} after the colon')}"]
    elif catalog.password is not None and catalog.login is Login.OAUTH2:
        words = [f"CLIENT_ID {_text(catalog.user or '')}", f"CLIENT_SECRET {_text(placeholder(catalog.password))}"]
    elif catalog.password is not None:
        basic = f"Basic <base64 of {catalog.user}:{placeholder(catalog.password)}>"
        return f"TOKEN '', EXTRA_HTTP_HEADERS MAP {{'Authorization': {_text(basic)}}}"
    if not words:
        return None
    server = catalog.oauth2_server_uri or f"{(catalog.uri or '').rstrip('/')}/v1/oauth/tokens"
    words.append(f"OAUTH2_SERVER_URI {_text(server)}")
    if catalog.scope:
        words.append(f"OAUTH2_SCOPE {_text(catalog.scope)}")
    return ", ".join(words)


# ---- Spark


def _spark(table: ReadableTable) -> Recipe:
    catalog = table.catalog
    if catalog.type is CatalogType.EMBEDDED:
        text = (
            f"# pyspark --packages {SPARK_RUNTIME}\n"
            f'spark.read.format("iceberg").load({_python(table.metadata_location)}).show()\n'
        )
        note = "Spark has no client for this catalog: this reads the present snapshot; ask again for a newer one."
        return Recipe(ReadingEngine.SPARK, "python", text, note)
    label = _spark_name(table)
    settings = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        f"spark.sql.catalog.{label}": "org.apache.iceberg.spark.SparkCatalog",
        **{f"spark.sql.catalog.{label}.{name}": value for name, value in _spark_properties(table).items()},
    }
    packages = [SPARK_RUNTIME]
    if table.files is not None or catalog.type in {CatalogType.GLUE, CatalogType.S3TABLES}:
        packages.append(AWS_BUNDLE)
    if catalog.type is CatalogType.SQL:
        packages.append(_driver(catalog.uri or ""))
    given = " \\\n  ".join(f"--conf {_shell(f'{name}={value}')}" for name, value in settings.items())
    name = ".".join(f"`{part}`" for part in (label, *table.name.namespace, table.name.name))
    query = _shell(f"SELECT * FROM {name}")
    text = f"spark-sql --packages {','.join(packages)} \\\n  {given} \\\n  -e {query}\n"
    return Recipe(ReadingEngine.SPARK, "sh", text)


def _spark_name(table: ReadableTable) -> str:
    """A JDBC catalog keeps its tables under its name."""
    if table.catalog.type is CatalogType.SQL:
        return table.catalog.catalog_name or DEFAULT_CATALOG_NAME
    return table.label


def _spark_properties(table: ReadableTable) -> dict[str, str]:
    catalog, found = table.catalog, _properties(table)
    chosen = {"type": {"sql": "jdbc"}.get(found["type"], found["type"])}
    if catalog.type is CatalogType.SQL:
        chosen |= _jdbc(catalog)
    elif "uri" in found:
        chosen["uri"] = found["uri"]
    for name in ("warehouse", "credential", "token", "scope", "oauth2-server-uri", "header.Authorization"):
        if name in found:
            chosen[name] = found[name]
    for name in ("rest.sigv4-enabled", "rest.signing-name", "rest.signing-region"):
        if name in found:
            chosen[name] = found[name]
    chosen |= _java_store(table)
    return chosen


def _jdbc(catalog: CatalogConnection) -> dict[str, str]:
    address = catalog.uri or ""
    scheme, _, rest = address.partition("://")
    kind = scheme.partition("+")[0]
    found = {"uri": f"jdbc:sqlite:{rest.removeprefix('/')}" if kind == "sqlite" else f"jdbc:{kind}://{rest}"}
    if catalog.user is not None and catalog.password is not None:
        found |= {"jdbc.user": catalog.user, "jdbc.password": placeholder(catalog.password)}
    return found | {"jdbc.schema-version": "V1"}


def _driver(uri: str) -> str:
    return "org.xerial:sqlite-jdbc:3.50.3.0" if uri.startswith("sqlite") else "org.postgresql:postgresql:42.7.7"


def _java_store(table: ReadableTable) -> dict[str, str]:
    aws = table.files
    if aws is None:
        return {}
    found = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", "client.region": aws.region or DEFAULT_REGION}
    if aws.endpoint:
        found |= {"s3.endpoint": aws.endpoint, "s3.path-style-access": "true"}
    if aws.access_key_id is not None and aws.secret_access_key is not None:
        found |= {"s3.access-key-id": aws.access_key_id, "s3.secret-access-key": placeholder(aws.secret_access_key)}
        if aws.session_token is not None:
            found["s3.session-token"] = placeholder(aws.session_token)
    elif aws.role_arn is not None:
        found |= {
            "client.factory": "org.apache.iceberg.aws.AssumeRoleAwsClientFactory",
            "client.assume-role.arn": aws.role_arn,
            "client.assume-role.region": aws.region or DEFAULT_REGION,
        }
    return found


def _shell(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# ---- Trino


def _trino(table: ReadableTable) -> Recipe:
    lines = [f"# etc/catalog/{table.label}.properties", "connector.name=iceberg", *_trino_catalog(table)]
    lines += _trino_store(table)
    name = ".".join(quoted_name(part) for part in (table.label, table.namespace, table.name.name))
    note = ""
    if table.catalog.type is CatalogType.EMBEDDED:
        schema, file = _text(table.namespace), _text(table.metadata_location.rpartition("/")[2])
        lines.append("# then, in Trino")
        lines.append(f"CREATE SCHEMA IF NOT EXISTS {_dotted(table.label)}.{quoted_name(table.namespace)};")
        lines.append(
            f"CALL {_dotted(table.label)}.system.register_table(schema_name => {schema}, "
            f"table_name => {_text(table.name.name)}, table_location => {_text(table.location)}, "
            f"metadata_file_name => {file});"
        )
        note = "Trino has no client for this catalog: this registers the present snapshot in a catalog of Trino's own."
    lines += ["# and query" if note else "# then, in Trino", f"SELECT * FROM {name};"]
    return Recipe(ReadingEngine.TRINO, "properties", "\n".join(lines) + "\n", note)


def _trino_catalog(table: ReadableTable) -> list[str]:
    catalog = table.catalog
    match catalog.type:
        case CatalogType.REST | CatalogType.S3TABLES:
            return _trino_rest(table)
        case CatalogType.GLUE:
            region = (catalog.aws.region if catalog.aws else None) or DEFAULT_REGION
            return ["iceberg.catalog.type=glue", f"hive.metastore.glue.region={region}"]
        case CatalogType.HIVE:
            return ["iceberg.catalog.type=hive_metastore", f"hive.metastore.uri={catalog.uri}"]
        case CatalogType.SQL:
            jdbc = _jdbc(catalog)
            lines = ["iceberg.catalog.type=jdbc", f"iceberg.jdbc-catalog.catalog-name={_spark_name(table)}"]
            driver = "org.sqlite.JDBC" if (catalog.uri or "").startswith("sqlite") else "org.postgresql.Driver"
            lines += [
                f"iceberg.jdbc-catalog.driver-class={driver}",
                f"iceberg.jdbc-catalog.connection-url={jdbc['uri']}",
            ]
            if "jdbc.user" in jdbc:
                lines.append(f"iceberg.jdbc-catalog.connection-user={jdbc['jdbc.user']}")
                lines.append(f"iceberg.jdbc-catalog.connection-password={jdbc['jdbc.password']}")
            return [*lines, f"iceberg.jdbc-catalog.default-warehouse-dir={catalog.warehouse}"]
        case CatalogType.EMBEDDED:
            return [
                "iceberg.catalog.type=TESTING_FILE_METASTORE",
                "hive.metastore.catalog.dir=local:///trino",
                "iceberg.register-table-procedure.enabled=true",
                "fs.native-local.enabled=true",
                "local.location=/",
            ]


def _trino_rest(table: ReadableTable) -> list[str]:
    catalog, found = table.catalog, _properties(table)
    lines = ["iceberg.catalog.type=rest", f"iceberg.rest-catalog.uri={found['uri']}"]
    if catalog.warehouse:
        lines.append(f"iceberg.rest-catalog.warehouse={catalog.warehouse}")
    if "rest.sigv4-enabled" in found:
        lines += [
            "iceberg.rest-catalog.security=SIGV4",
            "# in older versions of Trino: iceberg.rest-catalog.sigv4-enabled=true",
            f"iceberg.rest-catalog.signing-name={found['rest.signing-name']}",
        ]
    elif "credential" in found or "token" in found:
        lines.append("iceberg.rest-catalog.security=OAUTH2")
        lines += [f"iceberg.rest-catalog.oauth2.{key}={found[key]}" for key in ("credential", "token") if key in found]
        if catalog.scope:
            lines.append(f"iceberg.rest-catalog.oauth2.scope={catalog.scope}")
        if catalog.oauth2_server_uri:
            lines.append(f"iceberg.rest-catalog.oauth2.server-uri={catalog.oauth2_server_uri}")
    return lines


def _trino_store(table: ReadableTable) -> list[str]:
    aws = table.files
    if aws is None:
        return []
    lines = ["fs.native-s3.enabled=true", f"s3.region={aws.region or DEFAULT_REGION}"]
    if aws.endpoint:
        lines += [f"s3.endpoint={aws.endpoint}", "s3.path-style-access=true"]
    if aws.access_key_id is not None and aws.secret_access_key is not None:
        lines += [f"s3.aws-access-key={aws.access_key_id}", f"s3.aws-secret-key={placeholder(aws.secret_access_key)}"]
    elif aws.role_arn is not None:
        lines.append(f"s3.iam-role={aws.role_arn}")
    return lines


# ---- ClickHouse


def _clickhouse(table: ReadableTable) -> Recipe:
    catalog, aws = table.catalog, table.files
    note = ""
    if catalog.type in {CatalogType.REST, CatalogType.GLUE, CatalogType.HIVE}:
        settings = {"catalog_type": catalog.type.value}
        if catalog.type is CatalogType.REST:
            settings |= _clickhouse_login(catalog)
        if catalog.warehouse:
            settings["warehouse"] = catalog.warehouse
        if catalog.type is CatalogType.GLUE:
            settings["region"] = (catalog.aws.region if catalog.aws else None) or DEFAULT_REGION
        if aws is not None and aws.endpoint:
            settings["storage_endpoint"] = aws.endpoint
        keys = ""
        if aws is not None and aws.access_key_id and aws.secret_access_key:
            keys = f", {_text(aws.access_key_id)}, {_text(placeholder(aws.secret_access_key))}"
        given = ", ".join(f"{name} = {_text(value)}" for name, value in settings.items())
        text = (
            f"SET allow_experimental_database_iceberg = 1, allow_experimental_database_glue_catalog = 1, "
            f"allow_experimental_database_hms_catalog = 1;\n"
            f"CREATE DATABASE {table.label} ENGINE = DataLakeCatalog({_text(catalog.uri or '')}{keys})\n"
            f"SETTINGS {given};\n"
            f"SELECT * FROM {table.label}.`{table.namespace}.{table.name.name}`;\n"
        )
    elif "://" in table.location and not table.location.startswith("file://"):
        keys = ", '<access key id>', '<secret access key>'"
        if aws is not None and aws.access_key_id and aws.secret_access_key:
            keys = f", {_text(aws.access_key_id)}, {_text(placeholder(aws.secret_access_key))}"
        text = f"SELECT * FROM icebergS3({_text(_https(table.location, aws))}{keys});\n"
        note = "ClickHouse finds the newest metadata file in the table's folder."
    else:
        text = f"SELECT * FROM icebergLocal({_text(table.folder + '/')});\n"
        note = "ClickHouse finds the newest metadata file in the folder, which must be below its `user_files_path`."
    return Recipe(ReadingEngine.CLICKHOUSE, "sql", text, note)


def _clickhouse_login(catalog: CatalogConnection) -> dict[str, str]:
    found: dict[str, str] = {}
    if catalog.credential is not None:
        found["catalog_credential"] = placeholder(catalog.credential)
    elif catalog.password is not None and catalog.login is Login.OAUTH2:
        found["catalog_credential"] = f"{catalog.user}:{placeholder(catalog.password)}"
    elif catalog.password is not None:
        found["auth_header"] = f"Authorization: Basic <base64 of {catalog.user}:{placeholder(catalog.password)}>"
    elif catalog.token is not None:
        found["auth_header"] = f"Authorization: Bearer {placeholder(catalog.token)}"
    if catalog.oauth2_server_uri:
        found["oauth_server_uri"] = catalog.oauth2_server_uri
    if catalog.scope:
        found["auth_scope"] = catalog.scope
    return found


def _https(location: str, aws: AwsConnection | None) -> str:
    parts = urlsplit(location)
    if aws is not None and aws.endpoint:
        return f"{aws.endpoint.rstrip('/')}/{parts.netloc}{parts.path}/"
    region = (aws.region if aws else None) or DEFAULT_REGION
    return f"https://{parts.netloc}.s3.{region}.amazonaws.com{parts.path}/"


_MAKERS: Mapping[ReadingEngine, Callable[[ReadableTable], Recipe]] = {
    ReadingEngine.DUCKDB: _duckdb,
    ReadingEngine.SPARK: _spark,
    ReadingEngine.TRINO: _trino,
    ReadingEngine.PYICEBERG: _pyiceberg,
    ReadingEngine.POLARS: _polars,
    ReadingEngine.CLICKHOUSE: _clickhouse,
}
