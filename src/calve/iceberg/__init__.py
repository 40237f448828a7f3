"""Iceberg tables: the only package, with `catalog`, that touches pyiceberg's internals.

    loading       load or create the table of a sink                                    (driver)
    sink_table    one table as one sink uses it: load, commit, evolve, merge manifests  (driver)

    schema/       creation    Spark columns -> Iceberg schema and partition spec
                  fitting     how an input fits a table          evolution  changes that make it fit
                  arrow       Arrow schemas with field ids; Parquet footers -> column metrics     (executors)
                  readable    Arrow and Spark types for readers  staged     columns of staged rows (executors)
    files/        store       locations -> filesystems: write, size, existence                    (executors)
                  avro, manifests, manifest_cache    write and read manifests and manifest lists
                  options     how files are written              position_deletes                 (executors)
                  transforms, partitions             rows -> partition values                     (executors)
                  thrift, parquet_column             footers of Parquet files; a copy with one more column
    planning/     travel, pruning, delete_index      which snapshot, which files, which deletes
                  table_scan  a snapshot -> data files with their deletes
                  key_scan    files that may hold rows with given keys
                  facts       what manifests say about files     compaction_groups
    snapshot/     history     snapshots as the protocol sees them; summaries
                  draft       builds a snapshot: manifest list, updates, requirements
                  removal, compaction, conversion    snapshots that replace files
                  expiry      which snapshots expire             holds      tags that keep history during work
    small_tables/ tables that calve keeps for itself

A location is a URI whose path is not percent-encoded: pyiceberg, DuckDB and Hadoop read locations this way.
"""
