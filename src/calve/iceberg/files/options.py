"""Options of file writers: from the sink, else from the table's properties, else calve's defaults.

A property with an invalid value is ignored: a mistake in another user's table setup must not stop a stream.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from calve.model.files import BloomFilter, FileOptions
from calve.model.numbers import whole_number
from calve.model.spec import MAX_FILE_SIZE, WriteOptions

T = TypeVar("T")

_BLOOM = "write.parquet.bloom-filter-enabled.column."
_BLOOM_FPP = "write.parquet.bloom-filter-fpp.column."
_BLOOM_NDV = "write.parquet.bloom-filter-ndv.column."
_CODECS = {
    "zstd": "zstd",
    "snappy": "snappy",
    "gzip": "gzip",
    "lz4": "lz4",
    "lz4_raw": "lz4",
    "brotli": "brotli",
    "uncompressed": "none",
    "none": "none",
}

log = logging.getLogger(__name__)


def file_options(options: WriteOptions, properties: Mapping[str, str], key: Sequence[str] = ()) -> FileOptions:
    """The options of the next files of a table with these properties and this key."""
    table = _TableProperties(properties)
    usual = FileOptions()
    codec = table.value("write.parquet.compression-codec", _codec)
    level = table.value("write.parquet.compression-level", int) if options.compression in {None, codec} else None
    size = options.target_file_size or table.value("write.target-file-size-bytes", _positive) or MAX_FILE_SIZE
    return FileOptions(
        target_file_size=min(size, MAX_FILE_SIZE),
        row_group_rows=table.value("write.parquet.row-group-limit", _positive) or usual.row_group_rows,
        row_group_size=options.row_group_size or table.value("write.parquet.row-group-size-bytes", _positive),
        compression=options.compression or codec or usual.compression,
        compression_level=level,
        page_size=table.value("write.parquet.page-size-bytes", _positive),
        page_rows=table.value("write.parquet.page-row-limit", _positive),
        dictionary_size=table.value("write.parquet.dict-size-bytes", _positive),
        bloom_filters=_bloom_filters(table, key if options.bloom_filter else ()),
        extensions=options.extensions,
    )


def _bloom_filters(table: "_TableProperties", key: Sequence[str]) -> tuple[BloomFilter, ...]:
    """The Bloom filters that the table enables, and those of the columns of `key` in any case."""
    columns = {name.removeprefix(_BLOOM) for name in table.properties if name.startswith(_BLOOM)}
    return tuple(
        BloomFilter(
            column,
            table.value(f"{_BLOOM_FPP}{column}", _share) or 0.01,
            table.value(f"{_BLOOM_NDV}{column}", _positive),
        )
        for column in sorted(columns.union(key))
        if column in key or table.value(f"{_BLOOM}{column}", str.lower) == "true"
    )


class _TableProperties:
    """Parses properties of a table; ignores invalid values."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.properties = properties

    def value(self, name: str, read: Callable[[str], T]) -> T | None:
        text = self.properties.get(name)
        if text is None:
            return None
        try:
            return read(text.strip())
        except ValueError:
            log.warning("invalid table property is ignored", extra={"property": name, "value": text})
            return None


def _codec(text: str) -> str:
    if text.lower() not in _CODECS:
        raise ValueError(text)
    return _CODECS[text.lower()]


def _positive(text: str) -> int:
    number = whole_number(text)
    if not number:
        raise ValueError(text)
    return number


def _share(text: str) -> float:
    if not 0 < float(text) < 1:
        raise ValueError(text)
    return float(text)
