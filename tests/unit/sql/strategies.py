"""Random statements, built as values: every statement, every clause."""

from decimal import Decimal

from hypothesis import strategies as st

from calve.sql import parts, statements
from calve.sql.names import FieldPath, Identifier, is_plain
from calve.sql.options import Option, OptionName, Options, SecretLiteral, SecretName, Value, is_reference, is_sensitive

KEYWORDS = (
    *("key", "MODE", "Namespace", "table", "CONNECTION", "secret", "global", "delete", "when", "time", "diff", "order"),
    *(
        "by",
        "format",
        "envelope",
        "day",
        "bucket",
        "cascade",
        "exists",
        "like",
        "primary",
        "enforced",
        "columns",
        "none",
    ),
    *(
        "refresh",
        "level",
        "catalog",
        "aws",
        "kafka",
        "files",
        "load",
        "generator",
        "include",
        "partition",
        "set",
        "rename",
    ),
)
texts = st.text(max_size=12)
words = st.one_of(
    st.sampled_from(KEYWORDS),
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True),
    st.text("äß\u0131Σδ表éx_1", min_size=1, max_size=6),
).filter(is_plain)
names = st.one_of(
    st.builds(Identifier, words),
    st.builds(Identifier.exact, st.text(min_size=1, max_size=10)),
    st.builds(Identifier.exact, words),
)
paths = st.builds(FieldPath, st.lists(names, min_size=1, max_size=3).map(tuple))


def distinct(items: st.SearchStrategy[Identifier], at_least: int) -> st.SearchStrategy[tuple[Identifier, ...]]:
    return st.lists(items, min_size=at_least, max_size=4, unique_by=lambda name: name.name.lower()).map(tuple)


# ---- options

option_words = st.one_of(
    st.sampled_from(
        ["COMMIT", "INTERVAL", "TYPE", "AWS", "CONNECTION", "TIME", "COLUMN", "PASSWORD", "KEY", "TOKEN", "ON"]
    ),
    st.from_regex(r"[A-Z][A-Z0-9_]{0,5}", fullmatch=True).filter(lambda word: word != "SECRET"),
)
option_names = st.one_of(
    st.lists(option_words, min_size=1, max_size=3).map(" ".join),
    st.sampled_from(["SECRET ACCESS KEY", "PASSWORD", "URI"]),
)
decimals = st.builds(
    lambda whole, fraction, sign: Decimal(f"{sign}{whole}.{fraction}"),
    st.integers(0, 10**12),
    st.from_regex(r"[0-9]{1,10}", fullmatch=True),
    st.sampled_from(["", "-"]),
)
plain_values = st.one_of(texts, st.booleans(), st.integers(-(10**29), 10**29), decimals)


def values_of(name: str) -> st.SearchStrategy[Value]:
    secret_names = st.builds(SecretName, names)
    if is_sensitive(name):
        return st.one_of(st.builds(SecretLiteral, texts), secret_names)
    if is_reference(name):
        return st.one_of(names, secret_names)
    return st.one_of(plain_values, secret_names)


option = option_names.flatmap(lambda name: st.builds(Option, st.just(name), values_of(name)))


def options(at_least: int = 1) -> st.SearchStrategy[Options]:
    entries = st.lists(option, min_size=at_least, max_size=4, unique_by=lambda option: option.name)
    return st.builds(Options, entries.map(tuple))


reset = st.lists(option_names, min_size=1, max_size=3, unique=True).map(
    lambda found: statements.ResetOptions(tuple(OptionName(name) for name in sorted(found)))
)

# ---- Spark's language

leaves = st.one_of(
    st.sampled_from(
        ["a", "1", "x.y", "<>", "=", ".5", "CASE WHEN a THEN b END", "-- it's;\n a", "/* ; ' ( */ a", "a /*+ h */ b"]
    ),
    st.sampled_from(
        ["'it''s'", r"'it\'s'", "';'", "')'", '"a;b"', r"'\\'", r"r'\'", "`a;``b`", "'--'", "'/*'", "''", "ü"]
    ),
)
spark = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(" ".join),
        st.lists(inner, max_size=3).map(lambda found: f"f({', '.join(found)})"),
        inner.map(lambda found: f"a[{found}]"),
    ),
    max_leaves=8,
)
queries = st.one_of(
    spark.map(lambda text: f"SELECT {text}"), spark.map(lambda text: f"WITH x AS (SELECT {text}) SELECT 1, 2")
)

# ---- parts

simple_types = st.sampled_from(
    [
        "BOOLEAN",
        "INT",
        "BIGINT",
        "STRING",
        "DECIMAL(12,2)",
        "CHAR(3)",
        "VARCHAR(9)",
        "TIMESTAMP",
        "TIMESTAMP_NTZ",
        "TIME(3)",
    ]
)
field_names = st.one_of(
    st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True).filter(is_plain),
    st.text("a `\"'<>,;\u00fc", min_size=1, max_size=5)
    .filter(lambda name: not (name.isascii() and is_plain(name)))
    .map(lambda name: "`" + name.replace("`", "``") + "`"),
)
types = st.recursive(
    simple_types,
    lambda inner: st.one_of(
        inner.map(lambda found: f"ARRAY<{found}>"),
        st.tuples(inner, inner).map(lambda found: f"MAP<{found[0]}, {found[1]}>"),
        st.dictionaries(field_names, st.tuples(inner, st.sampled_from(["", " NOT NULL"])), min_size=1, max_size=3).map(
            lambda found: "STRUCT<" + ", ".join(f"{name}: {kind}{null}" for name, (kind, null) in found.items()) + ">"
        ),
    ),
    max_leaves=6,
)
origins = st.one_of(
    st.builds(parts.FromEnvironment, texts),
    st.builds(parts.FromFile, texts),
    st.builds(parts.FromLiteral, st.builds(SecretLiteral, texts)),
)
orders = st.builds(parts.OrderClause, st.lists(paths, min_size=1, max_size=3).map(tuple), st.booleans())
envelopes = st.one_of(
    st.none(),
    st.just(parts.NoneEnvelope()),
    st.builds(parts.UpsertEnvelope, st.none() | orders, st.none() | spark),
    st.builds(parts.DebeziumEnvelope, st.none() | orders),
    st.builds(parts.DiffEnvelope, paths, paths, st.none() | paths),
)
formats = st.one_of(
    st.just(parts.JsonFormat()),
    st.just(parts.AvroFormat()),
    st.builds(parts.AvroFormat, schema=texts),
    st.builds(parts.AvroFormat, registry=options()),
    st.builds(parts.ProtobufFormat, options()),
)
includes = st.lists(
    st.builds(parts.Include, st.sampled_from(parts.Metadata), st.none() | names),
    max_size=3,
    unique_by=lambda item: item.metadata,
).map(tuple)
inputs = st.one_of(
    st.builds(parts.KafkaClause, names, options(), formats, includes),
    st.builds(parts.FilesClause, options()),
    st.builds(parts.GeneratorClause, names, options(0)),
    st.builds(parts.TableClause, paths, options(0)),
)
partition_fields = st.one_of(
    st.builds(
        parts.PartitionField,
        st.sampled_from(
            [item for item in parts.Transform if item not in {parts.Transform.BUCKET, parts.Transform.TRUNCATE}]
        ),
        paths,
    ),
    st.builds(
        parts.PartitionField,
        st.sampled_from([parts.Transform.BUCKET, parts.Transform.TRUNCATE]),
        paths,
        st.integers(1, 2**31 - 1),
    ),
)
partitionings = st.lists(partition_fields, max_size=3).map(tuple)
table_names = st.text(min_size=1, max_size=8).filter(lambda name: "." not in name)
targets = st.builds(
    parts.IcebergTarget, names, st.lists(table_names, min_size=1, max_size=3).map(tuple), table_names, st.none() | names
)

# ---- statements


@st.composite
def sources(draw: st.DrawFn) -> statements.CreateSource:
    columns = tuple(parts.ColumnClause(name, draw(types), draw(st.booleans())) for name in draw(distinct(names, 0)))
    declared = [column.name for column in columns]
    key = draw(
        st.lists(st.sampled_from(declared), max_size=2, unique=True).map(tuple) if declared else distinct(names, 0)
    )
    return statements.CreateSource(
        name=draw(names),
        if_not_exists=draw(st.booleans()),
        columns=columns,
        primary_key=key,
        input=draw(inputs),
        envelope=draw(envelopes),
        infer=draw(st.booleans()),
    )


@st.composite
def sinks(draw: st.DrawFn) -> statements.CreateSink:
    key = draw(distinct(names, 0))
    return statements.CreateSink(
        name=draw(names),
        if_not_exists=draw(st.booleans()),
        source=draw(names),
        target=draw(targets),
        key=key,
        key_not_enforced=bool(key) and draw(st.booleans()),
        mode=draw(st.none() | st.sampled_from(parts.SinkMode)),
        partition_by=draw(partitionings),
        options=draw(options(0)),
    )


@st.composite
def connections(draw: st.DrawFn) -> statements.CreateConnection:
    kind = draw(st.sampled_from(statements.ConnectionKind))
    return statements.CreateConnection(
        name=draw(names),
        if_not_exists=draw(st.booleans()),
        kind=kind,
        options=draw(options(0 if kind is statements.ConnectionKind.AWS else 1)),
        settings=draw(options(0)),
    )


option_actions = st.one_of(st.builds(statements.SetOptions, options()), reset)
source_actions = st.one_of(
    option_actions,
    distinct(names, 1).flatmap(
        lambda found: st.tuples(*(st.builds(parts.ColumnClause, st.just(n), types, st.booleans()) for n in found)).map(
            statements.SetColumns
        )
    ),
)
sink_actions = st.one_of(
    option_actions,
    st.builds(statements.SetFrom, names, options(0)),
    st.builds(statements.SetPartitioning, partitionings),
    st.sampled_from([statements.Pause(), statements.Resume()]),
    st.builds(statements.AcceptSnapshot, st.integers(0, 10**19 - 1)),
)
flags = st.booleans()
kinds = st.sampled_from(statements.ObjectKind)
analyze_targets = st.one_of(texts, paths)
maintained = st.sampled_from(statements.MaintenanceKind)
any_statement: st.SearchStrategy[statements.Statement] = st.one_of(
    st.builds(statements.CreateSecret, name=names, if_not_exists=flags, origin=origins),
    connections(),
    sources(),
    st.builds(statements.CreateView, name=names, if_not_exists=flags, query=queries),
    sinks(),
    st.builds(statements.AlterSecret, name=names, if_exists=flags, origin=origins),
    st.builds(statements.AlterConnection, name=names, if_exists=flags, action=option_actions, settings=options(0)),
    st.builds(statements.AlterSource, name=names, if_exists=flags, action=source_actions),
    st.builds(statements.AlterView, name=names, if_exists=flags, query=queries),
    st.builds(statements.AlterSink, name=names, if_exists=flags, action=sink_actions),
    st.builds(statements.Drop, kind=kinds, name=names, if_exists=flags, cascade=flags),
    st.builds(statements.Show, listing=st.sampled_from(statements.ShowKind), like=st.none() | texts),
    st.builds(statements.ShowCreate, kind=kinds, name=names),
    st.builds(statements.Explain, statement=sinks()),
    st.builds(statements.Validate, connection=names),
    st.builds(
        statements.RefreshMetadata,
        target=analyze_targets,
        columns=st.none() | st.lists(paths, max_size=3).map(tuple),
        level=st.none() | st.sampled_from(statements.MetadataLevel),
    ),
    st.builds(statements.DropMetadata, target=analyze_targets, if_exists=flags),
    st.builds(statements.SelectQuery, text=queries),
    st.builds(statements.MaintainTable, kind=maintained, target=paths, options=st.just(Options()) | options()),
    st.builds(
        statements.MaintainTable,
        kind=st.just(statements.MaintenanceKind.OPTIMIZE),
        target=paths,
        where_text=st.sampled_from(["a = 1", "day >= '2026-01-01' AND (b IS NULL OR c = ')')", "a IN (1, 2)"]),
        options=st.just(Options()) | options(),
    ),
)
