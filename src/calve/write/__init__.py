"""Changes -> data files and key files of one batch.

    frame of changes
          │ changes.py         rejects bad records and null keys, casts to the table's types       (in Spark)
          │ batch.py           chooses a writer by size and schema; partitions
          ├─► driver_writer.py   small batches, collected on the driver as Arrow
          ├─► task_writer.py     any schema, any store: Spark shuffles and sorts, `worker.py` writes in Python tasks
          └─► native_writer.py   large flat batches in stores that Spark reaches: Spark's own Parquet writer;
          │                      `native_files.py` turns its output into files of the table
          ▼
    WriteResult

`consolidate.py` keeps the last change per key, `data_files.py` writes Parquet files of a bounded size, `staging.py`
writes and reads changes that wait for their window, `timed.py` detects late rows. `row_ids.py` writes files of a batch
again when it is committed, with the ids that updated rows keep. Files of a failed attempt are never part of a result.
"""
