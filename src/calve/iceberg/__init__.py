"""Iceberg tables: the only package, with `catalog`, that touches pyiceberg's internals.

    schema      Spark columns -> Iceberg schema with field ids
    metrics     Arrow schemas with field ids; Parquet footers -> column metrics        (executors)
    store       locations -> filesystems: write, size, existence                      (executors)
    manifests   written files -> manifests that any attempt can use; entries of manifests
    listing     manifest lists
    avro        the Avro files of both
    snapshots   what the protocol sees of snapshots; summaries
    draft       a snapshot on its way into the table: updates and requirements
    retention   which snapshots are kept, by age and number
    expiry      removes the others in a commit of its own
    holds       tags that keep history while work stands on it
    merging     which manifests are merged
    table       load, one commit attempt, manifest merge                              (driver)
    scan        a snapshot -> data files with their deletes                           (driver)
    travel, pruning, delete_index    which snapshot, which files, which deletes       (driver)
    key_scan, key_partitions         which files may hold rows with given keys        (driver)
    position_deletes                 files of position deletes                        (executors)
    conversion                       equality deletes replaced by position deletes    (driver)
    readable    Arrow's and Spark's types for readers                                 (executors)

    declared         columns by name and kind -> schema and partitions
    declared_tables  tables of such columns, made or brought in step
    manifest_reader  manifests and lists that were read once
    partitioned      partitions that are single files: replace, remove, expire
    rows             these files
    orphans          files that nothing refers to

A location is a URI whose path is written as it is, without percent-encoding: that is how pyiceberg, DuckDB and Hadoop
read one.
"""
