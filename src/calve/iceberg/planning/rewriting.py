"""Where and how to write rows again that are in files already: of a table, or of a batch that is about to be added."""

from collections.abc import Mapping, Sequence

from pyiceberg.schema import Schema
from pyiceberg.table import Table

from calve.iceberg.files.options import file_options
from calve.iceberg.planning.key_scan import place_of
from calve.model.files import WriteTarget
from calve.model.spec import WriteOptions


def rewriting_target(
    table: Table,
    schema: Schema,
    spec_id: int,
    options: WriteOptions,
    io_properties: Mapping[str, str],
    key_ids: Sequence[int] = (),
) -> WriteTarget:
    """Where and how to write files of one partition spec with the columns of `schema`."""
    place, spec = place_of(table), table.specs()[spec_id]
    keys = [name for i in key_ids if (name := table.schema().find_column_name(i))]
    return WriteTarget(
        schema_json=schema.model_dump_json(),
        key_ids=tuple(key_ids),
        data_location=place.data_location,
        data_spec_id=spec_id,
        delete_spec_id=spec_id,
        data_spec_json="" if spec.is_unpartitioned() else spec.model_dump_json(),
        table_properties=dict(place.table_properties),
        io_properties=dict(io_properties),
        options=file_options(options, table.properties, keys),
        mark=place.mark,
    )
