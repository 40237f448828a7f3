"""Which partitions can hold rows with given keys: those that the keys themselves belong to.

A partition field whose source is a key column has the same value for every row of a key. So a file whose value no key
has holds none of the rows, whatever its bounds say. Fields of other columns say nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionField
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, VoidTransform
from pyiceberg.types import DoubleType, FloatType, IcebergType, UUIDType

from calve.iceberg.transforms import transformed
from calve.model.scan import ScanFile

_Test = tuple[int, int, PartitionField, IcebergType]
"""Place of a field in its spec, place of its source in the key, the field, the type of the source."""


class KeyPartitions:
    """The partition fields of all specs of a table that keys decide. For the driver alone."""

    def __init__(self, table: Table, key_ids: Sequence[int]) -> None:
        schema = table.schema()
        known = {f.field_id: f.field_type for f in schema.fields}
        self._tests: dict[int, list[_Test]] = {
            spec_id: [
                (place, key_ids.index(field.source_id), field, known[field.source_id])
                for place, field in enumerate(spec.fields)
                if field.source_id in key_ids and field.source_id in known and _is_exact(field, known[field.source_id])
            ]
            for spec_id, spec in table.specs().items()
        }

    def reached(self, files: Sequence[ScanFile], values: Callable[[int], pa.Array], keys: int) -> tuple[ScanFile, ...]:
        """The files that can hold a key. `values` gives the different values of a column of the keys, by its place."""
        wanted: dict[tuple[int, int], set[Any]] = {}
        for spec_id in {file.spec_id for file in files}:
            for place, at, field, kind in self._tests[spec_id]:
                if not _fills_all(field, keys):
                    found = transformed(values(at), kind, field.transform)
                    wanted[spec_id, place] = set(found.to_pylist())
        return tuple(
            file
            for file in files
            if all(
                file.partition[place] in wanted[file.spec_id, place]
                for place, *_ in self._tests[file.spec_id]
                if (file.spec_id, place) in wanted
            )
        )


def _fills_all(field: PartitionField, keys: int) -> bool:
    """Whether so many keys are sure to be in every bucket, or nearly: then it is not worth hashing them."""
    return isinstance(field.transform, BucketTransform) and keys > 3 * field.transform.num_buckets


def _is_exact(field: PartitionField, kind: IcebergType) -> bool:
    """Whether values of files and of keys are compared as they are."""
    return not isinstance(field.transform, VoidTransform) and not isinstance(kind, FloatType | DoubleType | UUIDType)
