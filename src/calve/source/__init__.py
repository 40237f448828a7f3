"""Sources that calve drives itself: what is read, and up to which offsets.

port.py            the interface of a source, and a bounded DataFrame as one
files/             a folder of files
kafka/             a topic
table.py           the changes of a table
generator.py       a load generator

Sources give records; `envelope` makes changes of them. The changes of a table are also a source of Spark's own queries:

table_stream.py    `calve.stream_changes`: offsets, tasks, and the streaming DataFrame
python_source.py   the same as a data source of Spark 4
following.py       what both readers of a table's history share
"""
