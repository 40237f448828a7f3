"""CREATE SINK, in two equivalent spellings.

    TO ICEBERG CATALOG c NAMESPACE "n" TABLE "t"
    INTO ICEBERG CATALOG CONNECTION c (NAMESPACE = 'n', TABLE = 't')

The clauses after the catalog may appear in any order.
"""

from calve.sql.grammar.cursor import STATEMENT_STARTS, Cursor, keyword_hint, names
from calve.sql.grammar.objects import create_head
from calve.sql.grammar.options import options
from calve.sql.grammar.partition import partition_by
from calve.sql.lexer import TokenKind
from calve.sql.names import RESERVED, Identifier
from calve.sql.options import NO_OPTIONS, Options
from calve.sql.parts import IcebergTarget, PartitionField, SinkMode
from calve.sql.statements import CreateSink, ObjectKind
from calve.sql.text import Span

_USAGE = (
    'CREATE SINK name FROM source TO ICEBERG CATALOG c [USING AWS CONNECTION a] NAMESPACE "n" TABLE "t" '
    "[KEY (column, ...)] [MODE UPSERT | APPEND] [PARTITION BY (...)] [WITH (...)]"
)
_CLAUSE_USAGE = {
    "USING": "USING AWS CONNECTION name",
    "NAMESPACE": 'NAMESPACE "name"',
    "TABLE": 'TABLE "name"',
    "KEY": "KEY (column, ...) [NOT ENFORCED]",
    "MODE": "MODE UPSERT | APPEND",
    "PARTITION": "PARTITION BY (column, bucket(16, column), day(column), ...)",
    "WITH": "WITH (option = value, ...)",
}
_FOREIGN = {
    "ENVELOPE": ("a sink into Iceberg has a mode, not an envelope", "Write MODE UPSERT or MODE APPEND."),
    "FORMAT": (
        "a sink into Iceberg has no FORMAT",
        "Tables are written as Parquet. FORMAT VERSION is an option of WITH.",
    ),
    "IN": ("calve has no clusters", "Leave IN CLUSTER out."),
    "PARTITIONED": ("unknown clause PARTITIONED", "Write PARTITION BY (...)."),
    "PRIMARY": ("unknown clause PRIMARY KEY", "Write KEY (column, ...)."),
}


def create_sink(cursor: Cursor) -> CreateSink:
    """CREATE SINK, after these words."""
    cursor.usage = _USAGE
    head = create_head(cursor, ObjectKind.SINK)
    _refuse_foreign(cursor)
    cursor.expect_words("FROM", after="the name of the sink")
    source = cursor.name("the name of a source or view")
    clauses = _SinkClauses(cursor)
    clauses.read()
    return CreateSink(
        name=head.name,
        if_not_exists=head.if_not_exists,
        source=source,
        target=clauses.target(),
        key=clauses.key or (),
        key_not_enforced=clauses.key_not_enforced,
        mode=clauses.mode,
        partition_by=clauses.partition_by or (),
        options=clauses.options or NO_OPTIONS,
    )


def _refuse_foreign(cursor: Cursor) -> None:
    word = cursor.peek().word
    if word in _FOREIGN:
        primary, hint = _FOREIGN[word]
        raise cursor.error(primary, hint=hint)


class _SinkClauses:
    """Everything after FROM."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._catalog: Identifier | None = None
        self._namespace: tuple[str, ...] | None = None
        self._table: str | None = None
        self._aws: Identifier | None = None
        self.key: tuple[Identifier, ...] | None = None
        self.key_not_enforced = False
        self.mode: SinkMode | None = None
        self.partition_by: tuple[PartitionField, ...] | None = None
        self.options: Options | None = None

    def read(self) -> None:
        cursor = self._cursor
        self._read_catalog()
        readers = {
            "USING": self._read_aws,
            "NAMESPACE": self._read_namespace,
            "TABLE": self._read_table,
            "KEY": self._read_key,
            "MODE": self._read_mode,
            "PARTITION": self._read_partition_by,
            "WITH": self._read_options,
        }
        while not cursor.peek().ends_statement:
            _refuse_foreign(cursor)
            word = cursor.peek().word
            if word not in readers and (cursor.peek().kind is not TokenKind.WORD or word in STATEMENT_STARTS):
                cursor.expect_end("CREATE SINK")
            word = cursor.choose("clause", readers, hint=_USAGE)
            cursor.usage = _CLAUSE_USAGE[word]
            readers[word]()
            cursor.usage = _USAGE

    def target(self) -> IcebergTarget:
        if self._catalog is None or self._namespace is None:
            raise self._cursor.unexpected("NAMESPACE", 'Name the table: NAMESPACE "shop" TABLE "orders".')
        if self._table is None:
            raise self._cursor.unexpected("TABLE", 'Name the table: NAMESPACE "shop" TABLE "orders".')
        return IcebergTarget(self._catalog, self._namespace, self._table, self._aws)

    def _read_catalog(self) -> None:
        cursor = self._cursor
        if not (cursor.accept_words("TO") or cursor.accept_words("INTO")):
            raise cursor.unexpected("TO or INTO after the name of the source")
        cursor.expect_words("ICEBERG", "CATALOG", after="TO")
        following = cursor.peek(1)
        if following.kind in {TokenKind.WORD, TokenKind.QUOTED} and following.word not in RESERVED:
            cursor.accept_words("CONNECTION")
        self._catalog = cursor.name("the name of a connection")
        if cursor.at_symbol("("):
            self._read_table_options()

    def _read_table_options(self) -> None:
        cursor = self._cursor
        for option in options(cursor):
            if option.name not in {"NAMESPACE", "TABLE"}:
                other = "Only NAMESPACE and TABLE are allowed here; other options go into WITH (...)."
                hint = keyword_hint(option.name, ["NAMESPACE", "TABLE"], otherwise=other)
                raise cursor.error(f"unknown option {option.name} of the table", option.where, hint)
            if not isinstance(option.value, str) or option.value_where is None:
                raise cursor.error(f"{option.name} takes a string", option.value_where, "")
            if option.name == "NAMESPACE":
                self._namespace = _levels(cursor, option.value, option.value_where)
            else:
                self._table = _table_name(cursor, option.value, option.value_where)

    def _once(self, before: object, words: str) -> None:
        if before is not None:
            raise self._cursor.error(f"{words} is given twice", self._cursor.last, "")

    def _read_aws(self) -> None:
        self._once(self._aws, "USING AWS CONNECTION")
        self._cursor.expect_words("AWS", "CONNECTION", after="USING")
        self._aws = self._cursor.name("the name of a connection")

    def _read_namespace(self) -> None:
        self._once(self._namespace, "NAMESPACE")
        self._cursor.accept_symbol("=")
        text, where = self._dotted("the name of a namespace")
        self._namespace = _levels(self._cursor, text, where)

    def _read_table(self) -> None:
        self._once(self._table, "TABLE")
        self._cursor.accept_symbol("=")
        text, where = self._dotted("the name of a table")
        self._table = _table_name(self._cursor, text, where)

    def _dotted(self, what: str) -> tuple[str, Span]:
        """A name or a text, with dots between levels in either case."""
        cursor, start = self._cursor, self._cursor.peek().start
        text = cursor.next().value if cursor.peek().kind is TokenKind.STRING else str(cursor.field_path(what))
        return text, cursor.span_from(start)

    def _read_key(self) -> None:
        self._once(self.key, "KEY")
        self.key = names(self._cursor, "key column")
        self.key_not_enforced = self._cursor.accept_words("NOT", "ENFORCED")

    def _read_mode(self) -> None:
        self._once(self.mode, "MODE")
        self.mode = SinkMode(self._cursor.choose("mode", [mode.value for mode in SinkMode]))

    def _read_partition_by(self) -> None:
        self._once(self.partition_by, "PARTITION BY")
        self._cursor.expect_words("BY", after="PARTITION")
        self.partition_by = partition_by(self._cursor)

    def _read_options(self) -> None:
        self._once(self.options, "WITH")
        self.options = options(self._cursor)


def _levels(cursor: Cursor, text: str, where: Span) -> tuple[str, ...]:
    levels = tuple(text.split("."))
    if not all(levels):
        raise cursor.error("a level of the namespace is empty", where, "Levels are separated by single dots: 'a.b'.")
    return levels


def _table_name(cursor: Cursor, text: str, where: Span) -> str:
    if not text:
        raise cursor.error("the name of the table is empty", where, "")
    if "." in text:
        raise cursor.error(
            "the name of a table must not contain dots", where, "Move the part before the dot to NAMESPACE."
        )
    return text
