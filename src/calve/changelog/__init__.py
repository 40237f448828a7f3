"""Reads what changed between two snapshots of a table: rows that became live, and rows that ceased to be.

    changes           `calve.changes`, and the same rows in this process                (driver)
    request           the columns, the key, net or every step                           (driver)
    local             small ranges, without a Spark job                                 (driver)
    frame             files -> tasks -> events ──► shuffle by key ──► changes           (driver)
    worker            a task -> events; a partition -> changes                          (executors)
    events            one file: which rows change in which step, and their columns      (executors)
    pairing           events of a key -> inserts, deletes and updates; net changes      (executors)
    row_numbers       equal rows -> equal numbers                                       (executors)

`iceberg/planning/change_range` decides which files are read. An event is a row of one file that a step adds to the
table or deletes from it. The package is not called `changes` because `calve.changes` is the function that users call.
"""
