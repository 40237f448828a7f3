"""Iceberg tables: manifests describe columns and files, footers describe row groups. Files never change."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import cached_property, partial
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812

from calve.analyze.column_types import bounded, columns_of, instant, kind_of
from calve.analyze.file_statistics import Footers, read_footers
from calve.analyze.subject import FileLook, ListedFile, WantedFacts
from calve.iceberg.files.store import open_input
from calve.iceberg.planning.facts import ColumnFacts, FileFacts, TableFacts
from calve.metastore.statistics import ColumnStatistics, StatisticsType
from calve.metastore.tables import TableId
from calve.sql.statements import MetadataLevel

KIND: Final = "ICEBERG"


@dataclass(frozen=True)
class TableSubject:
    """A table at its newest snapshot."""

    table: TableId
    facts: TableFacts
    spark: Callable[[], SparkSession]

    @property
    def kind(self) -> str:
        return KIND

    @property
    def location(self) -> str:
        return self.facts.location

    @property
    def reader(self) -> Mapping[str, str]:
        return {"columns": json.dumps(self.facts.schema)}

    @property
    def deepest(self) -> MetadataLevel:
        return MetadataLevel.ROW_GROUP

    @property
    def partition_columns(self) -> tuple[str, ...]:
        return self.facts.partition_columns

    @cached_property
    def _by_path(self) -> dict[str, FileFacts]:
        return {file.path: file for file in self.facts.files}

    def listing(self) -> list[ListedFile]:
        """The timestamp encodes whether rows of a file may be deleted, so that new deletes count as a change."""
        return [ListedFile(f.path, f.path, f.partition, f.size, int(f.deletes)) for f in self.facts.files]

    def look(self, files: Sequence[ListedFile], wanted: WantedFacts) -> list[FileLook]:
        schema = T.StructType.fromJson(dict(self.facts.schema))
        kinds = {".".join(path): kind_of(kind) for path, kind in columns_of(schema) if wanted.has(".".join(path))}
        looks = [_look(self._by_path[file.path], kinds, str(schema.json())) for file in files]
        if not wanted.row_groups:
            return looks
        footers = Footers(partial(open_input, io_properties=self.facts.io_properties), wanted, self.facts.names)
        groups = read_footers(self.spark, footers, files)
        return [replace(look, groups=footer.groups) for look, footer in zip(looks, groups, strict=True)]

    def schema(self, _schemas: Iterable[str]) -> str:
        return str(T.StructType.fromJson(dict(self.facts.schema)).json())


def _look(facts: FileFacts, kinds: Mapping[str, StatisticsType], schema: str) -> FileLook:
    columns = {name: _statistics(facts.columns[name], kind) for name, kind in kinds.items() if name in facts.columns}
    return FileLook(schema, facts.rows, columns, exact=not facts.deletes)


def _statistics(facts: ColumnFacts, kind: StatisticsType) -> ColumnStatistics:
    values = None if facts.values is None or facts.nulls is None else facts.values - facts.nulls
    return bounded(kind, facts.nulls, values, _bound(facts.least, kind), _bound(facts.greatest, kind))


def _bound(value: Any, kind: StatisticsType) -> Any:
    if not isinstance(value, int):
        return value
    if kind is StatisticsType.DATE:
        return date(1970, 1, 1) + timedelta(days=value)
    return instant(value, kind) if kind in {StatisticsType.TIMESTAMP, StatisticsType.LOCAL_TIMESTAMP} else value
