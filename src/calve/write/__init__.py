"""Change rows -> data files and files of keys of one batch.

    frame of changes
          │ changes.py   no bad record, no null in a key, types of the table           (in Spark)
          │ choose.py    which writer, by size and schema; partitions
          ├─► driver.py   small batches: taken to the driver as Arrow
          ├─► tasks.py    any schema, any store: shuffle and sort in Spark, `worker.py` writes in Python tasks
          └─► native.py   large flat batches where Spark reaches the store: Spark's own Parquet writer; `adopt.py`
          │               turns its output into table files
          ▼
    WriteResult

`last.py` takes the last change per key, `rolling.py` writes Parquet files of a bounded size, `session.py` is the only
module that touches Spark's internals, `failures.py` says in calve's terms what went wrong. Files that a failed attempt
leaves behind are never in a result; maintenance removes them.
"""
