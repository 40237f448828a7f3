"""Keys -> positions of the rows that have them, in one snapshot -> position delete files.

    state, keys ──► IcebergTable.plan_keys   candidates: by bounds of files                       (driver)
                         │ resolver.py       by partitions and values of the keys, if these fit into memory
                         ├─► indexed.py      if it costs less: the key index, which adds the files that it lacks
                         │                   (indexed_tasks.py: many keys, in Spark tasks)
                         ├─► search.py       few rows to search: threads of this process
                         └─► search.py       many: Spark tasks, one round of keys at a time
                         ▼ search.py         merged with older delete files, if there are many
                    position delete files ──► manifests of one commit attempt

`ordered.py` resolves the keys of sinks whose changes are ordered across checkpoints. `row_ids.py` finds the ids that
updated rows keep, in tables of format version 3; `write/row_ids.py` writes them.

Positions are valid in one snapshot only: the commit asserts that the table is still at that snapshot. A committable
therefore holds key files, written like equality deletes and with the same names, in the table's data location:
executors can reach it, a batch of any size fits, and data files and keys of a batch exist or vanish together. They
never become part of the table; the committer removes them after the receipt. Files of a failed attempt are orphans.

Bloom filters of data files are not used: Arrow writes them but cannot read them.
"""
