"""Fills the component `tables` of the metastore, and leaves out by it what a reader does not need.

    subject     what is analyzed: a folder or an Iceberg table lists its files, and can look into them
    folders     folders of Parquet, CSV and JSON                                                (driver)
    tables      Iceberg tables                                                                  (driver)
    footers     footers of Parquet files -> rows, bounds, row groups                            (executors)
    records     CSV and JSON: one aggregation by file                                           (Spark)
    columns     types, schemas and bounds
    units       looks into files -> units: table, segments, partitions, files, row groups       (pure)
    refresh     what changed since -> looks -> one modification of the metastore                (driver)
    pruning     a condition against statistics -> files that have to be read                    (driver)

A file is known by name, size and time stamp. Metadata never decides about a file that is not as it was analyzed.
"""
