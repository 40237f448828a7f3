"""Which engines read which deletes: the one table that `READERS` decides by, and that docs/engines.md shows.

A sink that names its readers gets a format version that all of them read, or an error that says which of them does not
read what. What is neither tested nor stated by an engine's own documentation counts as not read.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum

from calve.errors import InvalidInput
from calve.suggest import closest, did_you_mean
from calve.values import value

_ICEBERG_V2, _ICEBERG_V3 = 2, 3


class Encoding(StrEnum):
    """How deleted rows are marked in a table."""

    POSITION = "position deletes"
    VECTOR = "deletion vectors"
    EQUALITY = "equality deletes"


@value
class Support:
    """What is known about one engine and one encoding."""

    reads: bool | None
    """None: neither tested nor documented."""
    since: str = ""
    """The first version that reads it, as far as known; empty: all versions in use."""
    source: str = ""
    """An address, or empty if calve's own tests read it."""


TESTED = Support(reads=True)
UNKNOWN = Support(reads=None)


@value
class KnownReader:
    """An engine, and what it reads."""

    name: str
    """As `READERS` has it."""
    title: str
    position: Support
    vector: Support
    equality: Support

    def support(self, encoding: Encoding) -> Support:
        """What is known about one encoding."""
        found = {Encoding.POSITION: self.position, Encoding.VECTOR: self.vector, Encoding.EQUALITY: self.equality}
        return found[encoding]


def _stated(source: str, since: str = "") -> Support:
    return Support(reads=True, since=since, source=source)


def _excluded(source: str) -> Support:
    return Support(reads=False, source=source)


_ATHENA_DELETES = "https://docs.aws.amazon.com/athena/latest/ug/querying-iceberg-delete.html"
_AWS_V3 = "https://docs.aws.amazon.com/prescriptive-guidance/latest/apache-iceberg-on-aws/table-spec-v3.html"
_BIGQUERY_V2 = "https://docs.cloud.google.com/bigquery/docs/iceberg-external-tables"
_BIGQUERY_V3 = "https://docs.cloud.google.com/lakehouse/docs/use-iceberg-v3-binary-deletion-vectors"
_CLICKHOUSE = "https://clickhouse.com/docs/engines/table-engines/integrations/iceberg"
_CLOUDERA = "https://docs.cloudera.com/cdw-runtime/cloud/iceberg-how-to/topics/iceberg-delete.html"
_DATABRICKS = "https://www.databricks.com/blog/advancing-lakehouse-apache-iceberg-v3-databricks"
_SNOWFLAKE_V2 = (
    "https://docs.snowflake.com/release-notes/2025/other/"
    "2025-10-17-position-row-level-deletes-externally-managed-iceberg-ga"
)
_SNOWFLAKE_V3 = "https://docs.snowflake.com/en/release-notes/2026/other/2026-05-07-iceberg-v3-ga"
_PYICEBERG = "https://github.com/apache/iceberg/issues/6568"
_TRINO_V3 = "https://trino.io/docs/current/release/release-480.html"

READERS: tuple[KnownReader, ...] = (
    KnownReader("athena", "Amazon Athena", _stated(_ATHENA_DELETES), _excluded(_AWS_V3), UNKNOWN),
    KnownReader("bigquery", "BigQuery", _stated(_BIGQUERY_V2), _stated(_BIGQUERY_V3), UNKNOWN),
    KnownReader(
        "clickhouse", "ClickHouse", _stated(_CLICKHOUSE, "25.8"), _excluded(_CLICKHOUSE), _stated(_CLICKHOUSE, "25.8")
    ),
    KnownReader("databricks", "Databricks", UNKNOWN, _stated(_DATABRICKS), UNKNOWN),
    KnownReader("duckdb", "DuckDB", TESTED, Support(reads=True, since="1.5"), TESTED),
    KnownReader("hive", "Hive (Cloudera)", _stated(_CLOUDERA), UNKNOWN, _stated(_CLOUDERA)),
    KnownReader("impala", "Impala (Cloudera)", _stated(_CLOUDERA), UNKNOWN, _stated(_CLOUDERA)),
    KnownReader("polars", "Polars", TESTED, Support(reads=True, since="2.1"), _excluded(_PYICEBERG)),
    KnownReader("pyiceberg", "pyiceberg", TESTED, Support(reads=True, since="0.12"), _excluded(_PYICEBERG)),
    KnownReader("snowflake", "Snowflake", _stated(_SNOWFLAKE_V2), _stated(_SNOWFLAKE_V3), UNKNOWN),
    KnownReader("spark", "Spark with the Iceberg runtime", TESTED, TESTED, TESTED),
    KnownReader("trino", "Trino", TESTED, _stated(_TRINO_V3, "480"), TESTED),
)
"""By name. Tested means: with the versions that calve's tests use (pyproject.toml, Makefile)."""


@value
class Reader:
    """An engine that a sink names, with its version if the user gave one."""

    known: KnownReader
    version: tuple[int, ...] = ()
    """Empty: a current one."""

    def __str__(self) -> str:
        return " ".join([self.known.name, ".".join(map(str, self.version))]).rstrip()

    def reads(self, encoding: Encoding) -> bool:
        """Whether it reads an encoding, as far as known."""
        support = self.known.support(encoding)
        return support.reads is True and (not self.version or self.version >= _version(support.since))

    def why_not(self, encoding: Encoding) -> str:
        """Why it does not count as a reader of an encoding."""
        support = self.known.support(encoding)
        if support.reads and support.since:
            return f"{self} is older than {support.since}, which reads {encoding}"
        verb = "does not read" if support.reads is False else "is not known to read"
        return f"{self} {verb} {encoding}"

    def describe(self) -> str:
        """What it reads, for people."""
        read = [encoding.value for encoding in Encoding if self.reads(encoding)]
        rest = [encoding.value for encoding in Encoding if not self.reads(encoding)]
        return f"reads {', '.join(read) or 'no deletes'}" + (f"; not {', '.join(rest)}" if rest else "")


def parse_readers(text: str) -> tuple[Reader, ...]:
    """Parse a list of engines, `databricks, trino 480`. Raises InvalidInput."""
    found: dict[str, Reader] = {}
    for part in text.split(","):
        name, _, version = part.strip().partition(" ")
        known = next((one for one in READERS if one.name == name.lower()), None)
        if known is None:
            names = [one.name for one in READERS]
            hint = did_you_mean(closest(name, names), f"Known are {', '.join(names)}.")
            raise InvalidInput(f'unknown reader "{name}"', hint=hint)
        if version and not all(number.isdecimal() for number in version.strip().split(".")):
            raise InvalidInput(
                f'reader "{name}" has an invalid version', detail=f'Got "{version.strip()}".', hint="Write trino 480."
            )
        if known.name in found:
            raise InvalidInput(f'reader "{known.name}" is named twice', hint="Name its oldest version only.")
        found[known.name] = Reader(known, _version(version.strip()))
    return tuple(found.values())


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(".")) if text else ()


@value
class TableEncodings:
    """A format version, and the encodings that a table of a sink may have in it."""

    version: int
    encodings: tuple[Encoding, ...]

    def unread_by(self, readers: Iterable[Reader]) -> list[str]:
        """Why some readers cannot read it."""
        return [one.why_not(e) for one in readers for e in self.encodings if not one.reads(e)]


def layouts(*, by_key: bool, keeps_all: bool) -> tuple[TableEncodings, TableEncodings]:
    """The two layouts of a sink's table: of version 2, and of version 3.

    `by_key`: it writes equality deletes. `keeps_all`: it deletes nothing. A reader of version 3 has to know vectors
    even then: other writers and compactions of the table may write them.
    """
    if keeps_all:
        return TableEncodings(_ICEBERG_V2, ()), TableEncodings(_ICEBERG_V3, (Encoding.VECTOR,))
    old = Encoding.EQUALITY if by_key else Encoding.POSITION
    new = (Encoding.EQUALITY, Encoding.VECTOR) if by_key else (Encoding.VECTOR,)
    return TableEncodings(_ICEBERG_V2, (old,)), TableEncodings(_ICEBERG_V3, new)


def version_for(readers: Sequence[Reader], choices: Sequence[TableEncodings], asked: int | None) -> int | None:
    """The format version that all readers can read; None if they read both, and the table decides.

    `asked` is the version that the user asks for, if any. Raises InvalidInput if some reader cannot read any.
    """
    allowed = [one for one in choices if asked in {None, one.version}]
    readable = [one for one in allowed if not one.unread_by(readers)]
    if not readable:
        reasons = [f"{'; '.join(one.unread_by(readers))} (format version {one.version})" for one in allowed]
        raise InvalidInput(
            "the table could not be read by all of them",
            detail=f"{'. '.join(reasons)}.",
            hint="Leave one of them out, or write to a second table with a sink of its own. docs/engines.md has all.",
        )
    return asked if asked is not None else readable[0].version if len(readable) == 1 else None
