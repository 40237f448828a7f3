"""Reads and writes the Avro files of manifests and manifest lists, each in one piece.

pyiceberg derives the Avro schema, the encoders and the decoders for every file, which takes longer than coding the few
records of a manifest; here they are built once per schema. Encoding and decoding themselves are pyiceberg's, but for
the integers that most of an entry consists of.
"""

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from pyiceberg.avro.codecs import AVRO_CODEC_KEY
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import construct_reader, construct_writer, resolve_reader
from pyiceberg.io import OutputFile
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
)
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

_SCHEMA_KEY = "avro.schema"
_CODEC = "deflate"
_BLOCK = 1000
"""Records per block."""

_META_WRITER = construct_writer(META_SCHEMA)
_META_READER = construct_reader(META_SCHEMA, {-1: AvroFileHeader})


class _Encoder(BinaryEncoder):
    """Encodes into memory, without a call for each byte of an integer."""

    def __init__(self) -> None:
        self._content = bytearray()

    def content(self) -> bytes:
        """What was written."""
        return bytes(self._content)

    def write(self, b: bytes) -> None:
        self._content += b

    def write_int(self, integer: int) -> None:
        content, rest = self._content, (integer << 1) ^ (integer >> 63)
        while rest & ~0x7F:
            content.append((rest & 0x7F) | 0x80)
            rest >>= 7
        content.append(rest)

    def write_bytes(self, b: bytes) -> None:
        self.write_int(len(b))
        self._content += b


class RecordFormat:
    """The Avro form of the records of one schema."""

    def __init__(self, schema: Schema, name: str) -> None:
        self._schema_json = json.dumps(AvroSchemaConversion().iceberg_to_avro(schema, schema_name=name))
        self._writer = construct_writer(schema)

    def encode(self, record: Record) -> bytes:
        """Encode one record."""
        encoder = _Encoder()
        self._writer.write(encoder, record)
        return encoder.content()

    def write(self, output: OutputFile, header: Mapping[str, str], records: Sequence[bytes]) -> int:
        """Write encoded records to a file; returns its length in bytes. Raises OSError."""
        encoder = _Encoder()
        meta = {**header, _SCHEMA_KEY: self._schema_json, AVRO_CODEC_KEY: _CODEC}
        sync = hashlib.blake2b(b"".join(records), digest_size=SYNC_SIZE).digest()
        _META_WRITER.write(encoder, AvroFileHeader(MAGIC, meta, sync))
        for start in range(0, len(records), _BLOCK):
            block = records[start : start + _BLOCK]
            content = _deflated(b"".join(block))
            encoder.write_int(len(block))
            encoder.write_int(len(content))
            encoder.write(content)
            encoder.write(sync)
        with output.create(overwrite=True) as stream:
            stream.write(encoder.content())
        return len(encoder.content())


def _deflated(content: bytes) -> bytes:
    raw = zlib.compressobj(level=1, wbits=-zlib.MAX_WBITS)  # Avro wants no zlib header
    return raw.compress(content) + raw.flush()


def read_entries(content: bytes, *, version: Literal[2, 3] = 2) -> Iterator[ManifestEntry]:
    """Decode the entries of a manifest as written, without what they inherit.

    `version` decides which fields an entry has; those that the manifest lacks are None.
    """
    return _records(content, lambda schema_json: _entry_reader(schema_json, version))


def read_manifests(content: bytes) -> Iterator[ManifestFile]:
    """Decode a manifest list of any version with all fields of version 3; pyiceberg leaves out the first row ids."""
    return _records(content, _list_reader)


def _records(content: bytes, reader_of: Callable[[str], Reader]) -> Iterator[Any]:
    """Decode the records of a file with the reader for its schema. Raises ValueError, EOFError if it is damaged."""
    decoder = new_decoder(content)
    header: AvroFileHeader = _META_READER.read(decoder)
    if _SCHEMA_KEY not in header.meta:
        raise ValueError("the Avro file has no schema")
    reader = reader_of(header.meta[_SCHEMA_KEY])
    codec = header.compression_codec()
    while decoder.tell() < len(content):
        count = decoder.read_int()
        block = decoder.read_bytes()
        inner = new_decoder(codec.decompress(block) if codec else block)
        for _ in range(count):
            yield reader.read(inner)
        if decoder.read(SYNC_SIZE) != header.sync:
            raise ValueError("a block of the Avro file is damaged")


@lru_cache(maxsize=32)
def _entry_reader(schema_json: str, version: Literal[2, 3]) -> Reader:
    return resolve_reader(
        AvroSchemaConversion().avro_to_iceberg(json.loads(schema_json)),
        MANIFEST_ENTRY_SCHEMAS[version],
        {-1: ManifestEntry, 2: DataFile},
        {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    )


@lru_cache(maxsize=32)
def _list_reader(schema_json: str) -> Reader:
    return resolve_reader(
        AvroSchemaConversion().avro_to_iceberg(json.loads(schema_json)),
        MANIFEST_LIST_FILE_SCHEMAS[3],
        {-1: ManifestFile, 508: PartitionFieldSummary},
        {517: ManifestContent},
    )
