"""Envelopes: records become changes.

envelopes.py   the entry: `changes_of` for every envelope; conflicting rows for one key
upsert.py      the plan of an envelope on the driver; debezium.py and diff.py have theirs
upsert_records.py, debezium_records.py    parse JSON records in tasks
fields.py      times, conditions and typed columns; order.py orders the changes of a key
finish.py      the last steps of every envelope; log.py makes rows of a log
"""
