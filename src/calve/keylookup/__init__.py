"""Keys -> positions of the rows that have them, in one snapshot; and files of position deletes.

    state, keys ──► IcebergTable.plan_keys   candidates: by bounds of files                       (driver)
                         │ resolver.py       by partitions and values of the keys, as far as they fit into memory
                         ├─► indexed.py      where that costs less: the key index, which takes in files that it lacks
                         ├─► search.py       few rows to search: threads of this process
                         └─► search.py       many: Spark tasks, a round of keys at a time
                         ▼ delete_merging.py with older files of deletes, where there are many of them
                    files of position deletes ──► manifests of one commit attempt

Positions hold in one snapshot: whoever commits them asserts that the table is still there. A committable therefore
holds files of keys, written like equality deletes and with the same names, in the table's data location: executors
reach it, a batch of any size fits, and data files and keys of a batch are there or gone together. They never become a
part of the table; the committer removes them after the receipt. What an attempt that failed leaves behind is an orphan.

Bloom filters of data files are not used: Arrow writes and does not read them.
"""
