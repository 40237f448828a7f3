"""Every option that calve knows, by the kind of object it belongs to. The reference page and SHOW OPTIONS print it."""

from datetime import timedelta

from calve.model.spec import MAX_FILE_SIZE, MAX_PENDING_BATCHES
from calve.plan.settings import Kind, Setting, SettingGroup

_SECOND = timedelta(seconds=1)
_NOT_YET = ("*",)

SINK = SettingGroup(
    "a sink",
    (
        Setting(
            "COMMIT INTERVAL",
            Kind.DURATION,
            "When snapshots are made: at multiples of it, each with all that was read before. It does not hold back "
            "reading. Without it every checkpoint becomes a snapshot.",
            low=_SECOND,
        ),
        Setting(
            "CHECKPOINT INTERVAL",
            Kind.DURATION,
            "Least time between two checkpoints of a source that is read to its end; a backlog is read without a rest. "
            "The commit interval is a multiple of it.",
            default="as data comes",
            low=_SECOND,
        ),
        Setting(
            "DELETES",
            Kind.CHOICE,
            "How rows leave the table: by their places, which are looked up in every commit, or by keys that readers "
            "compare all rows with.",
            default="'position'",
            choices=("position", "equality"),
            later=("vector",),
        ),
        Setting(
            "KEY INDEX",
            Kind.CHOICE,
            "Whether places of rows are looked up in an index of keys, kept in the state location, instead of in the "
            "key columns of the table: where that costs less, always or never.",
            default="'auto'",
            choices=("auto", "on", "off"),
        ),
        Setting("FORMAT VERSION", Kind.INTEGER, "Version of the Iceberg format.", default="2", low=2, high=2),
        Setting(
            "TARGET FILE SIZE",
            Kind.SIZE,
            "Files are ended at about this size.",
            default="the table's, else '512MB'",
            low=1_000_000,
            high=MAX_FILE_SIZE,
        ),
        Setting(
            "COMPRESSION",
            Kind.CHOICE,
            "Codec of the Parquet files.",
            default="the table's, else 'zstd'",
            choices=("zstd", "snappy", "gzip", "lz4", "none"),
        ),
        Setting(
            "ROW GROUP SIZE",
            Kind.SIZE,
            "Row groups are ended at about this size in the file; it takes some times as much memory.",
            default="the table's, else by memory",
            low=100_000,
            high=MAX_FILE_SIZE,
        ),
        Setting(
            "BLOOM FILTER",
            Kind.BOOLEAN,
            "Data files have a Bloom filter for each key column: readers that look for few keys skip most files, which "
            "are one to two bytes per row larger.",
            default="false",
        ),
        Setting(
            "STATE LOCATION",
            Kind.TEXT,
            "Folder or URI for calve's records; never inside of a table.",
            default="below the home folder",
        ),
        Setting(
            "BRANCH",
            Kind.TEXT,
            "Branch of the table to write to; one that is not there yet begins at the head of main.",
            default="'main'",
        ),
        Setting(
            "ON FOREIGN COMMIT",
            Kind.CHOICE,
            "What to do when another writer changed the table's rows.",
            default="'halt'",
            choices=("halt", "accept"),
        ),
        Setting(
            "ON SCHEMA CHANGE",
            Kind.CHOICE,
            "What to do when the source has columns that the table lacks, or wider ones: change the table, or stop.",
            default="'evolve'",
            choices=("evolve", "halt"),
        ),
        Setting(
            "ON KEY VIOLATION",
            Kind.CHOICE,
            "What to do when a checkpoint has different rows of one key in the same order; looking for them takes a "
            "pass over the checkpoint.",
            default="'ignore'",
            choices=("ignore", "warn", "halt"),
        ),
        Setting(
            "ON TRUNCATE",
            Kind.CHOICE,
            "What to do when a Debezium record says that the source table was truncated.",
            default="'halt'",
            choices=("halt", "ignore"),
        ),
        Setting(
            "ON UNAVAILABLE VALUE",
            Kind.CHOICE,
            "What to do when a Debezium record leaves out a large value that did not change, in both images.",
            default="'halt'",
            choices=("halt", "null"),
        ),
        Setting(
            "ON BAD ROW",
            Kind.CHOICE,
            "What to do with a record that cannot become a change: stop, or keep it in a table of its own and go on.",
            default="'halt'",
            choices=("halt", "dead letter"),
        ),
        Setting(
            "DEAD LETTER TABLE",
            Kind.TEXT,
            "Where records go that cannot become changes: namespace.table, in the catalog of the sink's table.",
            default="the table's name with _dead_letters",
        ),
        Setting(
            "RECOVERY",
            Kind.CHOICE,
            "With a commit interval: stage every checkpoint, or take one per interval, which a crash reads again.",
            default="'stage'",
            choices=("stage", "replay"),
        ),
        Setting(
            "RESUME",
            Kind.BOOLEAN,
            "Go on where a dropped sink of this table stopped, with the same source.",
            default="false",
        ),
        Setting(
            "SNAPSHOT",
            Kind.BOOLEAN,
            "Make the table equal to the source in one snapshot, whatever it holds now.",
            default="false",
        ),
        Setting(
            "ADOPT",
            Kind.CHOICE,
            "Take over a table that has rows which no run of this sink wrote: they count as the collection so far. "
            "They are read once, to see that no key is null or there twice; 'trust' leaves that out.",
            default="false",
            choices=("true", "false", "trust"),
        ),
        Setting(
            "COMMIT SIZE",
            Kind.SIZE,
            "Commit before the commit interval is over when this much is staged.",
            low=1_000_000,
        ),
        Setting(
            "MAX PENDING BATCHES",
            Kind.INTEGER,
            "With so many batches waiting for the catalog nothing more is read.",
            default=str(MAX_PENDING_BATCHES),
            low=1,
        ),
        Setting(
            "MAX STAGED SIZE",
            Kind.SIZE,
            "With so much staged a window is closed early, and reading waits until that is committed. Where rows have "
            "times of their own, the sink stops if none of them can be committed.",
            default="'8GB'; no limit where rows have times of their own",
            low=1_000_000,
        ),
        Setting(
            "COALESCE",
            Kind.BOOLEAN,
            "Whether windows, or times, that are complete together become one snapshot.",
            default="true",
        ),
        Setting(
            "TIME COLUMN",
            Kind.NAME,
            "Field of the record with the logical time of its changes: a TIMESTAMP, or BIGINT milliseconds.",
            default="changes have the time of their checkpoint",
        ),
        Setting(
            "WATERMARK DELAY",
            Kind.DURATION,
            "How far times may be behind the highest one seen.",
            default="'0s'",
            low=timedelta(0),
        ),
        Setting(
            "IDLE TIMEOUT",
            Kind.DURATION,
            "When the source was asked for so long and had nothing, logical time follows the clock.",
            default="it waits",
            low=_SECOND,
        ),
        Setting(
            "LATE ROWS",
            Kind.CHOICE,
            "What to do with rows whose time is committed already: stop, give them the next time, or leave them out.",
            default="'error', with MODE APPEND 'advance'",
            choices=("error", "advance", "drop"),
        ),
        Setting(
            "HEARTBEAT",
            Kind.DURATION,
            "An idle sink commits an empty snapshot so long after the last one: readers see that time went on.",
            default="'1h'",
            low=_SECOND,
        ),
        Setting(
            "MAINTENANCE",
            Kind.CHOICE,
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
            Kind.CHOICE,
            "Kind of catalog; 'embedded' is the one in the home folder.",
            choices=("embedded", "rest", "s3tables", "s3table", "sql", "glue", "hive"),
            required=True,
        ),
        Setting("URI", Kind.TEXT, "Address of the catalog: https://..., sqlite:///..., thrift://..."),
        Setting("WAREHOUSE", Kind.TEXT, "Warehouse: a location, a name, or the ARN of a table bucket."),
        Setting("USER", Kind.TEXT, "User, or client id with AUTH = 'oauth2'."),
        Setting("PASSWORD", Kind.SECRET, "Password of the user, or client secret."),
        Setting(
            "AUTH",
            Kind.CHOICE,
            "How USER and PASSWORD log in.",
            default="'basic'",
            choices=("basic", "oauth2"),
        ),
        Setting("CREDENTIAL", Kind.SECRET, "OAuth2 client credentials as id:secret."),
        Setting("TOKEN", Kind.SECRET, "Bearer token."),
        Setting("SCOPE", Kind.TEXT, "OAuth2 scope."),
        Setting("OAUTH2 SERVER URI", Kind.TEXT, "Where tokens come from, if not from the catalog."),
        Setting("AWS CONNECTION", Kind.NAME, "AWS connection that signs requests and reaches the store."),
        Setting("SIGNING NAME", Kind.TEXT, "Service name of signed requests.", default="'execute-api'"),
    ),
)

AWS = SettingGroup(
    "a connection to AWS",
    (
        Setting("ACCESS KEY ID", Kind.TEXT, "Access key."),
        Setting("SECRET ACCESS KEY", Kind.SECRET, "Its secret."),
        Setting("SESSION TOKEN", Kind.SECRET, "Token of temporary keys."),
        Setting("ASSUME ROLE ARN", Kind.TEXT, "Role to take."),
        Setting("ASSUME ROLE SESSION NAME", Kind.TEXT, "Name of the role's session."),
        Setting("REGION", Kind.TEXT, "Region.", default="'us-east-1'"),
        Setting("ENDPOINT", Kind.TEXT, "Address of a compatible store."),
    ),
)

KAFKA = SettingGroup(
    "a connection to Kafka",
    (
        Setting("BROKER", Kind.TEXT, "host:port, or several with commas."),
        Setting("BROKERS", Kind.TEXT, "The same."),
        Setting(
            "SECURITY PROTOCOL",
            Kind.CHOICE,
            "How to talk to the brokers.",
            default="'plaintext'",
            choices=("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"),
        ),
        Setting(
            "SASL MECHANISM",
            Kind.CHOICE,
            "How to log in.",
            choices=("plain", "scram-sha-256", "scram-sha-512"),
        ),
        Setting("SASL USERNAME", Kind.TEXT, "User."),
        Setting("SASL PASSWORD", Kind.SECRET, "Its password."),
        Setting("SSL CERTIFICATE AUTHORITY", Kind.TEXT, "Who vouches for the brokers: PEM, or a file with it."),
        Setting("SSL CERTIFICATE", Kind.TEXT, "Certificate of this client: PEM, or a file with it."),
        Setting("SSL KEY", Kind.SECRET, "Its key, PEM."),
        Setting("SSL KEY PASSWORD", Kind.SECRET, "Password of the key."),
    ),
)

CONNECTION_STATEMENT = SettingGroup(
    "WITH of a connection",
    (Setting("VALIDATE", Kind.BOOLEAN, "Try the connection when it is created.", default="true; for AWS false"),),
)

FILES = SettingGroup(
    "a source of files",
    (
        Setting("PATH", Kind.TEXT, "Folder, or a pattern with *; a path or a URI.", required=True),
        Setting(
            "FORMAT",
            Kind.CHOICE,
            "Format of the files.",
            choices=("json", "csv", "parquet", "orc", "text"),
            required=True,
        ),
        Setting("MAX FILES PER CHECKPOINT", Kind.INTEGER, "Files taken at once.", default="1000", low=1),
        Setting(
            "EPOCH UNIT",
            Kind.CHOICE,
            "What numbers count in TIMESTAMP columns of JSON.",
            default="numbers are bad rows",
            choices=("ms", "us", "ns"),
        ),
        Setting("HEADER", Kind.BOOLEAN, "CSV files have a first line with names.", default="false"),
        Setting("DELIMITER", Kind.TEXT, "Separator of CSV values.", default="','"),
        Setting("NULL VALUE", Kind.TEXT, "Text that stands for null in CSV files.", default="''", may_be_empty=True),
    ),
)

GENERATOR = SettingGroup(
    "the load generator orders",
    (
        Setting("ROWS", Kind.INTEGER, "Orders that are inserted first.", default="100000", low=1),
        Setting(
            "UPDATES", Kind.INTEGER, "Changes that follow; then the source is complete.", default="without end", low=0
        ),
        Setting("UPDATES PER SECOND", Kind.NUMBER, "Pace of all changes.", default="as fast as possible", low=1),
        Setting("SEED", Kind.INTEGER, "Other seeds make other orders.", default="7", low=0),
        Setting("MAX ROWS PER CHECKPOINT", Kind.INTEGER, "Changes taken at once.", default="50000", low=1),
    ),
)

KAFKA_SOURCE = SettingGroup(
    "a source from Kafka",
    (
        Setting("TOPIC", Kind.TEXT, "Topic.", required=True),
        Setting(
            "START OFFSETS",
            Kind.TEXT,
            "Where a new sink begins: 'earliest', 'latest', offsets by partition ('{\"0\": 17}'), or a time with its "
            "zone ('2026-01-31T12:00:00Z').",
            default="'earliest'",
        ),
        Setting("START OFFSET", Kind.TEXT, "The same."),
        Setting("MAX OFFSETS PER CHECKPOINT", Kind.INTEGER, "Offsets taken at once.", default="1000000", low=1),
        Setting(
            "EPOCH UNIT",
            Kind.CHOICE,
            "What numbers count in TIMESTAMP columns of JSON.",
            default="numbers are bad rows; of DEBEZIUM, as the record says",
            choices=("ms", "us", "ns"),
        ),
    ),
)

SCHEMA_REGISTRY = SettingGroup(
    "a schema registry",
    (
        Setting("URL", Kind.TEXT, "Address of the registry.", required=True),
        Setting("USER", Kind.TEXT, "User, for HTTP Basic."),
        Setting("PASSWORD", Kind.SECRET, "Its password: a secret by name."),
    ),
)

GROUPS = (SINK, ICEBERG_CATALOG, AWS, KAFKA, CONNECTION_STATEMENT, FILES, GENERATOR, KAFKA_SOURCE, SCHEMA_REGISTRY)
