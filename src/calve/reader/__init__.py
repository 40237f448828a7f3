"""Reads tables: files and deletes -> rows, with pyarrow, on executors or in this process.

    read              `calve.read`, and the same rows in this process                   (driver)
    frame             files -> splits -> tasks -> a DataFrame                           (driver)
    conditions        Spark's condition -> the part that the planner can use            (driver)
    worker            a task -> record batches                                          (executors)
    rows              one file: row groups, deletes applied, columns by field id        (executors)
    row_groups        row groups that a condition excludes                              (executors)
    pages             neighboring rows of a row group, without decoding the others      (executors)
    deletes           the deletes of a task, loaded once; deletion vectors              (executors)
    key_sets          sets of deleted keys                                              (executors)
    key_positions     positions of live rows with given keys                            (executors)
    projection        columns of a file -> columns of the table                         (executors)

`iceberg/planning/table_scan` decides which files are read, with which deletes. The package is not called `read`
because `calve.read` is the function that users call.
"""
