"""How files are written: the sink says it, else the table, else calve."""

import logging

import pytest

from calve.iceberg.files.options import file_options
from calve.model.files import BloomFilter, FileOptions
from calve.model.spec import MAX_FILE_SIZE, WriteOptions

PROPERTIES = {
    "write.target-file-size-bytes": "1000000",
    "write.parquet.compression-codec": "GZIP",
    "write.parquet.compression-level": "7",
    "write.parquet.row-group-size-bytes": "500000",
    "write.parquet.row-group-limit": "9",
    "write.parquet.page-size-bytes": "4096",
    "write.parquet.page-row-limit": "100",
    "write.parquet.dict-size-bytes": "2048",
    "write.parquet.bloom-filter-enabled.column.id": "True",
    "write.parquet.bloom-filter-fpp.column.id": "0.1",
    "write.parquet.bloom-filter-ndv.column.id": "50",
    "write.parquet.bloom-filter-enabled.column.v": "false",
}


def test_the_properties_of_the_table_are_honoured() -> None:
    assert file_options(WriteOptions(), PROPERTIES) == FileOptions(
        target_file_size=1_000_000,
        row_group_rows=9,
        row_group_size=500_000,
        compression="gzip",
        compression_level=7,
        page_size=4096,
        page_rows=100,
        dictionary_size=2048,
        bloom_filters=(BloomFilter("id", 0.1, 50),),
    )


def test_the_sinks_own_options_win_and_leave_the_level_of_another_codec_behind() -> None:
    found = file_options(WriteOptions(2_000_000, 600_000, "zstd"), PROPERTIES)
    assert (found.target_file_size, found.row_group_size) == (2_000_000, 600_000)
    assert (found.compression, found.compression_level) == ("zstd", None)


def test_a_bloom_filter_of_the_key_is_added_to_those_of_the_table() -> None:
    found = file_options(WriteOptions(bloom_filter=True), PROPERTIES, ["v", "id"])
    assert found.bloom_filters == (BloomFilter("id", 0.1, 50), BloomFilter("v"))
    assert file_options(WriteOptions(), {}, ["id"]).bloom_filters == ()


def test_without_a_word_files_are_large_and_zstd() -> None:
    assert file_options(WriteOptions(), {}) == FileOptions()


def test_files_stay_below_the_largest_size_whatever_the_table_says() -> None:
    assert file_options(WriteOptions(), {"write.target-file-size-bytes": str(2**40)}).target_file_size == MAX_FILE_SIZE


def test_a_property_that_is_not_understood_is_told_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    odd = {
        "write.target-file-size-bytes": "-1",
        "write.parquet.compression-codec": "best",
        "write.parquet.page-size-bytes": "x",
    }
    with caplog.at_level(logging.WARNING):
        assert file_options(WriteOptions(), odd) == FileOptions()
    assert {record.__dict__["property"] for record in caplog.records} == set(odd)
