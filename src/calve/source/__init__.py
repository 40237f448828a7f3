"""Sources that calve drives itself: what is read, and up to which offsets.

port.py        the interface of a source, and a bounded DataFrame as one
files/         a folder of files
kafka/         a topic
generator.py   a load generator

Sources give records; `envelope` makes changes of them.
"""
