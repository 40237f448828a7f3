"""Records and their values: JSON documents, strict conversion into a table's types, bad rows.

Sources and envelopes share it. Runs in Spark's Python tasks, and needs neither Iceberg nor a catalog.
"""
