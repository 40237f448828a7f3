"""Every option that calve knows, by the kind of object it belongs to. The reference page and SHOW OPTIONS print it."""

from datetime import timedelta

from calve.model.spec import MAX_FILE_SIZE, MAX_PENDING_BATCHES
from calve.plan.settings import Setting, SettingGroup, SettingKind

_SECOND = timedelta(seconds=1)
_NOT_YET = ("*",)

SINK = SettingGroup(
    "a sink",
    (
        Setting(
            "COMMIT INTERVAL",
            SettingKind.DURATION,
            "When snapshots are made: at multiples of it, each with all that was read before. It does not hold back "
            "reading. Without it every checkpoint becomes a snapshot.",
            low=_SECOND,
        ),
        Setting(
            "CHECKPOINT INTERVAL",
            SettingKind.DURATION,
            "Least time between two checkpoints of a source that is read to its end; a backlog is read without a rest. "
            "The commit interval is a multiple of it.",
            default="as data comes",
            low=_SECOND,
        ),
        Setting(
            "DELETES",
            SettingKind.CHOICE,
            "How rows leave the table: by their places, which are looked up in every commit, or by keys that readers "
            "compare all rows with.",
            default="'position'",
            choices=("position", "equality"),
            later=("vector",),
        ),
        Setting(
            "KEY INDEX",
            SettingKind.CHOICE,
            "Whether places of rows are looked up in an index of keys, kept in the state location, instead of in the "
            "key columns of the table: where that costs less, always or never.",
            default="'auto'",
            choices=("auto", "on", "off"),
        ),
        Setting("FORMAT VERSION", SettingKind.INTEGER, "Version of the Iceberg format.", default="2", low=2, high=2),
        Setting(
            "TARGET FILE SIZE",
            SettingKind.SIZE,
            "Files are ended at about this size.",
            default="the table's, else '512MB'",
            low=1_000_000,
            high=MAX_FILE_SIZE,
        ),
        Setting(
            "COMPRESSION",
            SettingKind.CHOICE,
            "Codec of the Parquet files.",
            default="the table's, else 'zstd'",
            choices=("zstd", "snappy", "gzip", "lz4", "none"),
        ),
        Setting(
            "ROW GROUP SIZE",
            SettingKind.SIZE,
            "Row groups are ended at about this size in the file; it takes some times as much memory.",
            default="the table's, else by memory",
            low=100_000,
            high=MAX_FILE_SIZE,
        ),
        Setting(
            "BLOOM FILTER",
            SettingKind.BOOLEAN,
            "Data files have a Bloom filter for each key column: readers that look for few keys skip most files, which "
            "are one to two bytes per row larger.",
            default="false",
        ),
        Setting(
            "STATE LOCATION",
            SettingKind.TEXT,
            "Folder or URI for calve's records; never inside of a table.",
            default="below the home folder",
        ),
        Setting(
            "BRANCH",
            SettingKind.TEXT,
            "Branch of the table to write to; one that is not there yet begins at the head of main.",
            default="'main'",
        ),
        Setting(
            "ON FOREIGN COMMIT",
            SettingKind.CHOICE,
            "What to do when another writer changed the table's rows.",
            default="'halt'",
            choices=("halt", "accept"),
        ),
        Setting(
            "ON SCHEMA CHANGE",
            SettingKind.CHOICE,
            "What to do when the source has columns that the table lacks, or wider ones: change the table, or stop.",
            default="'evolve'",
            choices=("evolve", "halt"),
        ),
        Setting(
            "ON KEY VIOLATION",
            SettingKind.CHOICE,
            "What to do when a checkpoint has different rows of one key in the same order; looking for them takes a "
            "pass over the checkpoint.",
            default="'ignore'",
            choices=("ignore", "warn", "halt"),
        ),
        Setting(
            "ON TRUNCATE",
            SettingKind.CHOICE,
            "What to do when a Debezium record says that the source table was truncated.",
            default="'halt'",
            choices=("halt", "ignore"),
        ),
        Setting(
            "ON UNAVAILABLE VALUE",
            SettingKind.CHOICE,
            "What to do when a Debezium record leaves out a large value that did not change, in both images.",
            default="'halt'",
            choices=("halt", "null"),
        ),
        Setting(
            "ON BAD ROW",
            SettingKind.CHOICE,
            "What to do with a record that cannot become a change: stop, or keep it in a table of its own and go on.",
            default="'halt'",
            choices=("halt", "dead letter"),
        ),
        Setting(
            "DEAD LETTER TABLE",
            SettingKind.TEXT,
            "Where records go that cannot become changes: namespace.table, in the catalog of the sink's table.",
            default="the table's name with _dead_letters",
        ),
        Setting(
            "RECOVERY",
            SettingKind.CHOICE,
            "With a commit interval: stage every checkpoint, or take one per interval, which a crash reads again.",
            default="'stage'",
            choices=("stage", "replay"),
        ),
        Setting(
            "RESUME",
            SettingKind.BOOLEAN,
            "Go on where a dropped sink of this table stopped, with the same source.",
            default="false",
        ),
        Setting(
            "SNAPSHOT",
            SettingKind.BOOLEAN,
            "Make the table equal to the source in one snapshot, whatever it holds now.",
            default="false",
        ),
        Setting(
            "ADOPT",
            SettingKind.CHOICE,
            "Take over a table that has rows which no run of this sink wrote: they count as the collection so far. "
            "They are read once, to see that no key is null or there twice; 'trust' leaves that out.",
            default="false",
            choices=("true", "false", "trust"),
        ),
        Setting(
            "COMMIT SIZE",
            SettingKind.SIZE,
            "Commit before the commit interval is over when this much is staged.",
            low=1_000_000,
        ),
        Setting(
            "MAX PENDING BATCHES",
            SettingKind.INTEGER,
            "With so many batches waiting for the catalog nothing more is read.",
            default=str(MAX_PENDING_BATCHES),
            low=1,
        ),
        Setting(
            "MAX STAGED SIZE",
            SettingKind.SIZE,
            "With so much staged a window is closed early, and reading waits until that is committed. Where rows have "
            "times of their own, the sink stops if none of them can be committed.",
            default="'8GB'; no limit where rows have times of their own",
            low=1_000_000,
        ),
        Setting(
            "COALESCE",
            SettingKind.BOOLEAN,
            "Whether windows, or times, that are complete together become one snapshot.",
            default="true",
        ),
        Setting(
            "TIME COLUMN",
            SettingKind.NAME,
            "Field of the record with the logical time of its changes: a TIMESTAMP, or BIGINT milliseconds.",
            default="changes have the time of their checkpoint",
        ),
        Setting(
            "WATERMARK DELAY",
            SettingKind.DURATION,
            "How far times may be behind the highest one seen.",
            default="'0s'",
            low=timedelta(0),
        ),
        Setting(
            "IDLE TIMEOUT",
            SettingKind.DURATION,
            "When the source was asked for so long and had nothing, logical time follows the clock.",
            default="it waits",
            low=_SECOND,
        ),
        Setting(
            "LATE ROWS",
            SettingKind.CHOICE,
            "What to do with rows whose time is committed already: stop, give them the next time, or leave them out.",
            default="'error', with MODE APPEND 'advance'",
            choices=("error", "advance", "drop"),
        ),
        Setting(
            "HEARTBEAT",
            SettingKind.DURATION,
            "An idle sink commits an empty snapshot so long after the last one: readers see that time went on.",
            default="'1h'",
            low=_SECOND,
        ),
        Setting(
            "MAINTENANCE",
            SettingKind.CHOICE,
            "Whether the sink joins small files of its table, and writes files anew that have many deleted rows, by "
            "itself.",
            default="'auto'",
            choices=("auto", "off"),
        ),
    ),
)

ICEBERG_CATALOG = SettingGroup(
    "a connection to an Iceberg catalog",
    (
        Setting(
            "TYPE",
            SettingKind.CHOICE,
            "Kind of catalog; 'embedded' is the one in the home folder.",
            choices=("embedded", "rest", "s3tables", "s3table", "sql", "glue", "hive"),
            required=True,
        ),
        Setting("URI", SettingKind.TEXT, "Address of the catalog: https://..., sqlite:///..., thrift://..."),
        Setting("WAREHOUSE", SettingKind.TEXT, "Warehouse: a location, a name, or the ARN of a table bucket."),
        Setting("USER", SettingKind.TEXT, "User, or client id with AUTH = 'oauth2'."),
        Setting("PASSWORD", SettingKind.SECRET, "Password of the user, or client secret."),
        Setting(
            "AUTH",
            SettingKind.CHOICE,
            "How USER and PASSWORD log in.",
            default="'basic'",
            choices=("basic", "oauth2"),
        ),
        Setting("CREDENTIAL", SettingKind.SECRET, "OAuth2 client credentials as id:secret."),
        Setting("TOKEN", SettingKind.SECRET, "Bearer token."),
        Setting("SCOPE", SettingKind.TEXT, "OAuth2 scope."),
        Setting("OAUTH2 SERVER URI", SettingKind.TEXT, "Where tokens come from, if not from the catalog."),
        Setting("AWS CONNECTION", SettingKind.NAME, "AWS connection that signs requests and reaches the store."),
        Setting("SIGNING NAME", SettingKind.TEXT, "Service name of signed requests.", default="'execute-api'"),
    ),
)

AWS = SettingGroup(
    "a connection to AWS",
    (
        Setting("ACCESS KEY ID", SettingKind.TEXT, "Access key."),
        Setting("SECRET ACCESS KEY", SettingKind.SECRET, "Its secret."),
        Setting("SESSION TOKEN", SettingKind.SECRET, "Token of temporary keys."),
        Setting("ASSUME ROLE ARN", SettingKind.TEXT, "Role to take."),
        Setting("ASSUME ROLE SESSION NAME", SettingKind.TEXT, "Name of the role's session."),
        Setting("REGION", SettingKind.TEXT, "Region.", default="'us-east-1'"),
        Setting("ENDPOINT", SettingKind.TEXT, "Address of a compatible store."),
    ),
)

KAFKA = SettingGroup(
    "a connection to Kafka",
    (
        Setting("BROKER", SettingKind.TEXT, "host:port, or several with commas."),
        Setting("BROKERS", SettingKind.TEXT, "The same."),
        Setting(
            "SECURITY PROTOCOL",
            SettingKind.CHOICE,
            "How to talk to the brokers.",
            default="'plaintext'",
            choices=("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"),
        ),
        Setting(
            "SASL MECHANISM",
            SettingKind.CHOICE,
            "How to log in.",
            choices=("plain", "scram-sha-256", "scram-sha-512"),
        ),
        Setting("SASL USERNAME", SettingKind.TEXT, "User."),
        Setting("SASL PASSWORD", SettingKind.SECRET, "Its password."),
        Setting("SSL CERTIFICATE AUTHORITY", SettingKind.TEXT, "Who vouches for the brokers: PEM, or a file with it."),
        Setting("SSL CERTIFICATE", SettingKind.TEXT, "Certificate of this client: PEM, or a file with it."),
        Setting("SSL KEY", SettingKind.SECRET, "Its key, PEM."),
        Setting("SSL KEY PASSWORD", SettingKind.SECRET, "Password of the key."),
    ),
)

CONNECTION_STATEMENT = SettingGroup(
    "WITH of a connection",
    (
        Setting(
            "VALIDATE", SettingKind.BOOLEAN, "Try the connection when it is created.", default="true; for AWS false"
        ),
    ),
)

FILES = SettingGroup(
    "a source of files",
    (
        Setting("PATH", SettingKind.TEXT, "Folder, or a pattern with *; a path or a URI.", required=True),
        Setting(
            "FORMAT",
            SettingKind.CHOICE,
            "Format of the files.",
            choices=("json", "csv", "parquet", "orc", "text"),
            required=True,
        ),
        Setting("MAX FILES PER CHECKPOINT", SettingKind.INTEGER, "Files taken at once.", default="1000", low=1),
        Setting(
            "EPOCH UNIT",
            SettingKind.CHOICE,
            "What numbers count in TIMESTAMP columns of JSON.",
            default="numbers are bad rows",
            choices=("ms", "us", "ns"),
        ),
        Setting("HEADER", SettingKind.BOOLEAN, "CSV files have a first line with names.", default="false"),
        Setting("DELIMITER", SettingKind.TEXT, "Separator of CSV values.", default="','"),
        Setting(
            "NULL VALUE", SettingKind.TEXT, "Text that stands for null in CSV files.", default="''", may_be_empty=True
        ),
    ),
)

GENERATOR = SettingGroup(
    "the load generator orders",
    (
        Setting("ROWS", SettingKind.INTEGER, "Orders that are inserted first.", default="100000", low=1),
        Setting(
            "UPDATES",
            SettingKind.INTEGER,
            "Changes that follow; then the source is complete.",
            default="without end",
            low=0,
        ),
        Setting("UPDATES PER SECOND", SettingKind.NUMBER, "Pace of all changes.", default="as fast as possible", low=1),
        Setting("SEED", SettingKind.INTEGER, "Other seeds make other orders.", default="7", low=0),
        Setting("MAX ROWS PER CHECKPOINT", SettingKind.INTEGER, "Changes taken at once.", default="50000", low=1),
    ),
)

KAFKA_SOURCE = SettingGroup(
    "a source from Kafka",
    (
        Setting("TOPIC", SettingKind.TEXT, "Topic.", required=True),
        Setting(
            "START OFFSETS",
            SettingKind.TEXT,
            "Where a new sink begins: 'earliest', 'latest', offsets by partition ('{\"0\": 17}'), or a time with its "
            "zone ('2026-01-31T12:00:00Z').",
            default="'earliest'",
        ),
        Setting("START OFFSET", SettingKind.TEXT, "The same."),
        Setting("MAX OFFSETS PER CHECKPOINT", SettingKind.INTEGER, "Offsets taken at once.", default="1000000", low=1),
        Setting(
            "EPOCH UNIT",
            SettingKind.CHOICE,
            "What numbers count in TIMESTAMP columns of JSON.",
            default="numbers are bad rows; of DEBEZIUM, as the record says",
            choices=("ms", "us", "ns"),
        ),
    ),
)

SCHEMA_REGISTRY = SettingGroup(
    "a schema registry",
    (
        Setting("URL", SettingKind.TEXT, "Address of the registry.", required=True),
        Setting("USER", SettingKind.TEXT, "User, for HTTP Basic."),
        Setting("PASSWORD", SettingKind.SECRET, "Its password: a secret by name."),
    ),
)

GROUPS = (SINK, ICEBERG_CATALOG, AWS, KAFKA, CONNECTION_STATEMENT, FILES, GENERATOR, KAFKA_SOURCE, SCHEMA_REGISTRY)
