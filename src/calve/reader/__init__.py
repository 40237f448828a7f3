"""Reads tables: files and deletes -> rows, with pyarrow, on executors or in this process.

    planning/table_scan  which files, with which deletes                                (driver)
    splits            files -> parts of equal size -> tasks                             (driver)
    worker            a task -> record batches                                          (executors)
    rows              one file: row groups, deletes applied, columns by field id        (executors)
    row_groups        row groups that a condition leaves out                            (executors)
    deletes           the deletes of a task, loaded once                                (executors)
    key_sets, deletion_vectors  equality deletes; deletion vectors                                (executors)
    key_positions     places of live rows with given keys                               (executors)
    projection        columns of a file -> columns of the table                         (executors)
    conditions        Spark's condition -> what the planner can use                     (driver)
    frame             a DataFrame                                                       (driver)

The function `calve.read` has the name that this package would otherwise have.
"""
