"""Every option of every statement, by the kind of object that it belongs to.

Planning and the Python interface read options through these declarations. SHOW OPTIONS and `docs/options.md` print
them.
"""

from datetime import timedelta

from calve.model.connection import Login
from calve.model.spec import (
    LATEST_FORMAT,
    LEAST_GRACE_MS,
    MAX_FILE_SIZE,
    MAX_PENDING_BATCHES,
    Adopt,
    Deletes,
    EpochUnit,
    KeyIndexUse,
    LateRows,
    Maintenance,
    OnForeignCommit,
    OnKeyViolation,
    OnSchemaChange,
    OnTruncate,
    OnUnavailableValue,
    ThinSnapshots,
)
from calve.plan.settings import (
    SettingGroup,
    boolean,
    choice,
    duration,
    integer,
    name,
    number,
    secret,
    size,
    text,
    word,
)

_SECOND = timedelta(seconds=1)


class SinkOptions:
    """WITH (...) of CREATE SINK."""

    COMMIT_INTERVAL = duration(
        "Snapshots are committed at multiples of this interval, each with everything read before. It does not slow "
        "reading down. Without it, every checkpoint becomes a snapshot.",
        default="",
        low=_SECOND,
    )
    CHECKPOINT_INTERVAL = duration(
        "Minimum time between two checkpoints of a source that is read to its end; a backlog is read without pauses. "
        "The commit interval must be a multiple of it.",
        default="as data arrives; with a COMMIT INTERVAL, 1/300 of it",
        low=_SECOND,
    )
    DELETES = choice(
        "How rows are deleted: by position, which every commit looks up, or by key, which makes readers compare all "
        "rows with the deleted keys. In tables of format version 3, positions are written as deletion vectors, whether "
        "it says `'position'` or `'vector'`.",
        Deletes,
        default="'position'",
    )
    KEY_INDEX = choice(
        "Whether positions of rows are looked up in an index of keys in the state location instead of the key columns "
        "of the table: where that costs less, always or never.",
        KeyIndexUse,
        default="'auto'",
    )
    FORMAT_VERSION = integer(
        "Version of the Iceberg format. Tables of version 3 have deletion vectors and row ids. `ALTER SINK ... SET "
        "(FORMAT VERSION = 3)` upgrades the sink's table, for good.",
        default="the table's, else 2",
        low=2,
        high=LATEST_FORMAT,
    )
    READERS = text(
        "Engines that read the table, such as `'databricks, trino 480'`. They determine the format version of a new "
        "table, or it is refused: [what each engine reads](engines.md#what-each-engine-reads).",
        default="any",
    )
    TARGET_FILE_SIZE = size(
        "Approximate size at which a file is closed.",
        default="the table's, else '512MB'",
        low=1_000_000,
        high=MAX_FILE_SIZE,
    )
    COMPRESSION = word(
        "Codec of the Parquet files.",
        "zstd",
        "snappy",
        "gzip",
        "lz4",
        "none",
        default="the table's, else 'zstd'",
    )
    ROW_GROUP_SIZE = size(
        "Approximate size of a row group in the file; writing it takes a multiple of that in memory.",
        default="the table's, else by memory",
        low=100_000,
        high=MAX_FILE_SIZE,
    )
    BLOOM_FILTER = boolean(
        "Write a Bloom filter for each key column: readers that look for few keys skip most files. Files grow by one "
        "to two bytes per row.",
        default="false",
    )
    STATE_LOCATION = text(
        "Folder or URI for calve's records; never inside a table.",
        default="below the home folder",
    )
    BRANCH = text(
        "Branch of the table to write to; a missing one is created from the head of main.",
        default="'main'",
    )
    ON_FOREIGN_COMMIT = choice(
        "What to do when another writer changed the table's rows.", OnForeignCommit, default="'halt'"
    )
    ON_SCHEMA_CHANGE = choice(
        "What to do when the source has columns that the table lacks, or wider ones: change the table, or stop.",
        OnSchemaChange,
        default="'evolve'",
    )
    ON_KEY_VIOLATION = choice(
        "What to do when a checkpoint has different rows with the same key and order; detecting them takes a pass over "
        "the checkpoint.",
        OnKeyViolation,
        default="'ignore'",
    )
    ON_TRUNCATE = choice(
        "What to do when a Debezium record reports that the source table was truncated.", OnTruncate, default="'halt'"
    )
    ON_UNAVAILABLE_VALUE = choice(
        "What to do when both images of a Debezium record omit a large value that did not change.",
        OnUnavailableValue,
        default="'halt'",
    )
    ON_BAD_ROW = word(
        "What to do with a record that cannot be converted to a change: stop, or write it to the dead letter table and "
        "continue.",
        "halt",
        "dead letter",
        default="'halt'",
    )
    DEAD_LETTER_TABLE = text(
        "Table for records that cannot be converted to changes: namespace.table, in the catalog of the sink's table.",
        default="the table's name with _dead_letters",
    )
    RECOVERY = word(
        "With a commit interval: stage every checkpoint, or take one checkpoint per interval and read it again "
        "after a crash.",
        "stage",
        "replay",
        default="'stage'",
    )
    RESUME = boolean(
        "Continue where a dropped sink of this table stopped, with the same source.",
        default="false",
    )
    SNAPSHOT = boolean(
        "Make the table equal to the source in one snapshot, whatever it contains now.",
        default="false",
    )
    ADOPT = choice(
        "Adopt the rows of a table that no run of this sink wrote, as if the sink had written them. They are read "
        "once, to check that no key is null or duplicated; 'trust' skips the check.",
        Adopt,
        default="false",
    )
    COMMIT_SIZE = size("Commit before the commit interval ends once this much is staged.", low=1_000_000)
    MAX_PENDING_BATCHES = integer(
        "Reading pauses while this many batches wait for the catalog.",
        default=str(MAX_PENDING_BATCHES),
        low=1,
    )
    MAX_STAGED_SIZE = size(
        "Once this much is staged, the window closes early, and reading pauses until it is committed. Where rows have "
        "times of their own, the sink stops if none of them can be committed.",
        default="'8GB'; no limit where rows have times of their own",
        low=1_000_000,
    )
    COALESCE = boolean(
        "Whether windows, or times, that are complete together become one snapshot.",
        default="true",
    )
    TIME_COLUMN = name(
        "Field of the record with the logical time of its changes: a TIMESTAMP, or BIGINT milliseconds.",
        default="changes have the time of their checkpoint",
    )
    WATERMARK_DELAY = duration(
        "How far times may lag behind the highest one seen.",
        default="'0s'",
        low=timedelta(0),
    )
    IDLE_TIMEOUT = duration(
        "Once the source has had no data for this long, logical time follows the clock.",
        default="it waits",
        low=_SECOND,
    )
    LATE_ROWS = choice(
        "What to do with rows whose time is already committed: stop, move them to the next time, or drop them.",
        LateRows,
        default="'error', with MODE APPEND 'advance'",
    )
    HEARTBEAT = duration(
        "An idle sink commits an empty snapshot this long after the last one, so that readers see time advance.",
        default="'1h'",
        low=_SECOND,
    )
    SNAPSHOT_RETENTION = duration(
        "How long a snapshot is kept after the next one replaced it; at least an hour. Settings of the table "
        "(history.expire.max-snapshot-age-ms) or of its branch take precedence.",
        default="the table's, else '7d'",
        low=_SECOND,
    )
    MIN_SNAPSHOTS = integer(
        "Newest snapshots that are kept whatever their age. Settings of the table "
        "(history.expire.min-snapshots-to-keep) or of its branch take precedence.",
        default="the table's, else 1",
        low=1,
    )
    THIN_SNAPSHOTS = choice(
        "Whether only one snapshot per hour is kept of those that are not among the newest 50, or every one until its "
        "retention ends, which makes commits slower.",
        ThinSnapshots,
        default="'hourly'",
    )
    REMOVAL_GRACE = duration(
        "Files of an expired snapshot are removed this long after it expired; no query may take longer.",
        default="'1d'",
        low=timedelta(milliseconds=LEAST_GRACE_MS),
    )
    MAINTENANCE = choice(
        "Whether the sink compacts small files of its table, and rewrites files with many deleted rows.",
        Maintenance,
        default="'auto'",
    )
    EXPECTED_READS = number(
        "Full reads of the table per hour. Compactions rewrite files once reads have lost as much time to their "
        "deletes, or to their number, as the rewrite takes: more reads, earlier rewrites.",
        default="60",
        low=0,
    )
    DELETED_SHARE = number(
        "Files are rewritten exactly if at least this share of their rows, and ten thousand, is deleted, whatever "
        "reads cost.",
        default="by cost, at the latest 0.3",
        low=0,
        high=1,
    )
    SMALL_FILES = integer(
        "Small files of about the same size are merged exactly if a partition has this many, whatever reads cost.",
        default="by cost, at the latest 24",
        low=2,
    )
    MAINTENANCE_CORES = number(
        "Share of Spark's cores that may rewrite files at the same time; at least one does.",
        default="0.5",
        low=0,
        high=1,
    )
    MAINTENANCE_HOURS = text(
        "Time of the day, in UTC, in which compactions begin, such as '22:00-06:00'.",
        default="at any time",
    )
    SORT_BY = text(
        "Order of rows in files that compactions write: columns, `'region, created'`, or the Z-order of 2 to 8 columns "
        "of equal rank, `'zorder(lat, lon)'`. Readers skip files by these columns.",
        default="the table's sort order, else the key",
    )


class CatalogOptions:
    """Options of CREATE CONNECTION ... TO ICEBERG CATALOG."""

    TYPE = word(
        "Kind of catalog; 'embedded' is the one in the home folder.",
        "embedded",
        "rest",
        "s3tables",
        "s3table",
        "sql",
        "glue",
        "hive",
        required=True,
    )
    URI = text("Address of the catalog: https://..., sqlite:///..., thrift://...")
    WAREHOUSE = text("Warehouse: a location, a name, or the ARN of a table bucket.")
    USER = text("User, or client id with AUTH = 'oauth2'.")
    PASSWORD = secret("Password of the user, or client secret.")
    AUTH = choice("How USER and PASSWORD log in.", Login, default="'basic'")
    CREDENTIAL = secret("OAuth2 client credentials as id:secret.")
    TOKEN = secret("Bearer token.")
    SCOPE = text("OAuth2 scope.")
    OAUTH2_SERVER_URI = text("Address of the token server, if it is not the catalog.")
    AWS_CONNECTION = name("AWS connection that signs requests and accesses the store.")
    SIGNING_NAME = text("Service name of signed requests.", default="'execute-api'")
    CATALOG_NAME = text(
        "Name under which a SQL catalog keeps its tables; other tools see only tables under the same name.",
        default="'calve'",
    )


class AwsOptions:
    """Options of CREATE CONNECTION ... TO AWS."""

    ACCESS_KEY_ID = text("Access key.")
    SECRET_ACCESS_KEY = secret("Secret of the access key.")
    SESSION_TOKEN = secret("Token of temporary keys.")
    ASSUME_ROLE_ARN = text("Role to assume.")
    ASSUME_ROLE_SESSION_NAME = text("Name of the role's session.")
    REGION = text("Region.", default="'us-east-1'")
    ENDPOINT = text("Address of a compatible store.")


class KafkaOptions:
    """Options of CREATE CONNECTION ... TO KAFKA."""

    BROKER = text("host:port, or several separated by commas.")
    BROKERS = text("Same as BROKER.")
    SECURITY_PROTOCOL = word(
        "Protocol of the connection to the brokers.",
        "plaintext",
        "ssl",
        "sasl_plaintext",
        "sasl_ssl",
        default="'plaintext'",
    )
    SASL_MECHANISM = word("How to log in.", "plain", "scram-sha-256", "scram-sha-512")
    SASL_USERNAME = text("User.")
    SASL_PASSWORD = secret("Password of the user.")
    SSL_CERTIFICATE_AUTHORITY = text("CA certificate that verifies the brokers: PEM, or a file with it.")
    SSL_CERTIFICATE = text("Certificate of this client: PEM, or a file with it.")
    SSL_KEY = secret("Private key of the client certificate, PEM.")
    SSL_KEY_PASSWORD = secret("Password of the key.")


class ConnectionStatementOptions:
    """WITH (...) of CREATE CONNECTION."""

    VALIDATE = boolean("Test the connection when it is created.", default="true; for AWS false")


class FilesOptions:
    """Options of CREATE SOURCE ... FROM FILES."""

    PATH = text("Folder, or a pattern with *; a path or a URI.", required=True)
    FORMAT = word("Format of the files.", "json", "csv", "parquet", "orc", "text", required=True)
    MAX_FILES_PER_CHECKPOINT = integer(
        "Maximum number of files per checkpoint; of large files a backlog has fewer, by their bytes.",
        default="1000",
        low=1,
    )
    EPOCH_UNIT = choice(
        "Unit of numbers in TIMESTAMP columns of JSON.",
        EpochUnit,
        default="numbers are bad rows; of DEBEZIUM, as the record says, else microseconds",
    )
    HEADER = boolean("CSV files start with a line of column names.", default="false")
    DELIMITER = text("Separator of CSV values.", default="','")
    NULL_VALUE = text("Text that stands for null in CSV files.", default="''", may_be_empty=True)


class GeneratorOptions:
    """Options of CREATE SOURCE ... FROM LOAD GENERATOR."""

    ROWS = integer("Number of orders to insert first.", default="100000", low=1)
    UPDATES = integer("Number of changes after that; then the source is complete.", default="unlimited", low=0)
    UPDATES_PER_SECOND = number("Rate of all changes.", default="as fast as possible", low=1)
    SEED = integer("Different seeds generate different orders.", default="7", low=0)
    MAX_ROWS_PER_CHECKPOINT = integer("Maximum number of changes per checkpoint.", default="50000", low=1)


class KafkaSourceOptions:
    """Options of CREATE SOURCE ... FROM KAFKA CONNECTION."""

    TOPIC = text("Topic.", required=True)
    START_OFFSETS = text(
        "Where a new sink starts: 'earliest', 'latest', offsets by partition ('{\"0\": 17}'), or a time with its "
        "zone ('2026-01-31T12:00:00Z').",
        default="'earliest'",
    )
    START_OFFSET = text("Same as START OFFSETS.")
    MAX_OFFSETS_PER_CHECKPOINT = integer("Maximum number of offsets per checkpoint.", default="1000000", low=1)
    EPOCH_UNIT = choice(
        "Unit of numbers in TIMESTAMP columns of JSON.",
        EpochUnit,
        default="numbers are bad rows; of DEBEZIUM, as the record says, else microseconds",
    )


class TableSourceOptions:
    """Options of CREATE SOURCE ... FROM ICEBERG TABLE."""

    START = text(
        "Where a new sink starts: 'snapshot' (the rows of the table now, then its changes), 'earliest' (the rows of "
        "its oldest snapshot, then all changes), 'latest' (changes from now on); or the changes after a snapshot id, a "
        "time ('2026-01-31T12:00:00Z'), a frontier ('[1700000000000]'), a branch or a tag.",
        default="'snapshot'",
    )
    CONSUMER = text(
        "Name of a consumer: a tag of the table keeps what the sink has not read yet from expiring, see SHOW CONSUMERS."
    )
    MAX_HOLD = duration(
        "How long a consumer that makes no progress keeps snapshots from expiring.",
        default="'7d'",
        low=timedelta(minutes=10),
    )
    MAX_ROWS_PER_CHECKPOINT = integer(
        "Snapshots are taken together up to about this many changed rows; one snapshot is never split.",
        default="1000000",
        low=1,
    )


class RegistryOptions:
    """Options of USING SCHEMA REGISTRY."""

    URL = text("Address of the registry.", required=True)
    USER = text("User, for HTTP Basic.")
    PASSWORD = secret("Password of the user: a secret by name.")


_DRY_RUN = "Report what would be done, and do nothing."


class OptimizeOptions:
    """WITH (...) of OPTIMIZE TABLE."""

    SORT_BY = text(
        "Rewrite all files, with rows in this order: columns, `'region, created'`, or the Z-order of 2 to 8 columns, "
        "`'zorder(lat, lon)'`.",
        default="files that need no rewrite stay; others are sorted as the sink says, or by the key",
    )
    DRY_RUN = boolean(_DRY_RUN, default="false")


class ManifestOptions:
    """WITH (...) of REWRITE MANIFESTS."""

    DRY_RUN = boolean(_DRY_RUN, default="false")


class ConvertOptions:
    """WITH (...) of CONVERT DELETES."""

    DRY_RUN = boolean(_DRY_RUN, default="false")


class ExpireOptions:
    """WITH (...) of EXPIRE SNAPSHOTS."""

    OLDER_THAN = duration(
        "Snapshots expire when they have not been the current one for this long.",
        default="the sink's, the table's, else '7d'",
        low=timedelta(0),
    )
    MIN_SNAPSHOTS = integer(
        "Snapshots of the branch that stay whatever their age.", default="the sink's, the table's, else 1", low=1
    )
    GRACE = duration(
        "Files of expired snapshots are removed this long after the snapshots expired, by a later statement.",
        default="'1d'",
        low=timedelta(0),
    )
    FORCE = boolean("Permits ages and a grace below an hour, and overrides settings of the table.", default="false")
    DRY_RUN = boolean(_DRY_RUN, default="false")


class OrphanFileOptions:
    """WITH (...) of REMOVE ORPHAN FILES."""

    OLDER_THAN = duration(
        "Files are orphans when they are this old. They are removed when a second statement, at least this long after "
        "the first one, still finds them.",
        default="'3d'",
        low=timedelta(0),
    )
    ALL = boolean("Also remove files whose names are not those of calve.", default="false")
    FORGET = text(
        "Id or name of a sink that never runs again: it is excluded from the table for good, so that files that only "
        "its lost state could name are orphans.",
        default="",
    )
    FORCE = boolean("Permits an age below a day.", default="false")
    DRY_RUN = boolean(_DRY_RUN, default="false")


SINK = SettingGroup("a sink", SinkOptions)
ICEBERG_CATALOG = SettingGroup("a connection to an Iceberg catalog", CatalogOptions)
AWS = SettingGroup("a connection to AWS", AwsOptions)
KAFKA = SettingGroup("a connection to Kafka", KafkaOptions)
CONNECTION_STATEMENT = SettingGroup("WITH of a connection", ConnectionStatementOptions)
FILES = SettingGroup("a source of files", FilesOptions)
GENERATOR = SettingGroup("the load generator orders", GeneratorOptions)
KAFKA_SOURCE = SettingGroup("a source from Kafka", KafkaSourceOptions)
TABLE_SOURCE = SettingGroup("a source from an Iceberg table", TableSourceOptions)
SCHEMA_REGISTRY = SettingGroup("a schema registry", RegistryOptions)
OPTIMIZE = SettingGroup("OPTIMIZE TABLE", OptimizeOptions)
CONVERT = SettingGroup("CONVERT DELETES", ConvertOptions)
MANIFESTS = SettingGroup("REWRITE MANIFESTS", ManifestOptions)
EXPIRE = SettingGroup("EXPIRE SNAPSHOTS", ExpireOptions)
ORPHANS = SettingGroup("REMOVE ORPHAN FILES", OrphanFileOptions)

GROUPS = (
    *(SINK, ICEBERG_CATALOG, AWS, KAFKA, CONNECTION_STATEMENT, FILES, GENERATOR, KAFKA_SOURCE),
    *(TABLE_SOURCE, SCHEMA_REGISTRY),
    *(OPTIMIZE, CONVERT, MANIFESTS, EXPIRE, ORPHANS),
)
