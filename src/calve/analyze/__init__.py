"""Fills the component `tables` of the metastore, and uses it to skip files that a reader does not need.

    subject           what is analyzed: lists its files and inspects them
    folder_subject    folders of Parquet, CSV and JSON                                          (driver)
    table_subject     Iceberg tables                                                            (driver)
    file_statistics   Parquet footers -> rows, bounds, row groups; CSV and JSON: one aggregation (executors)
    column_types      types, schemas and bounds
    unit_rows         inspected files -> units: table, segments, partitions, files, row groups  (pure)
    refresh           changes since the last time -> one modification of the metastore          (driver)
    file_pruning      a condition against statistics -> the files to read                       (driver)

A file is known by name, size and time stamp. Metadata is never used for a file that changed since it was analyzed.
"""
