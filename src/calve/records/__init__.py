"""Records and their values: JSON documents, strict conversion into a table's types, bad rows.

Sources and envelopes share it. It runs in Spark's Python tasks, and needs neither Iceberg nor a catalog.

frames.py      records that Python code or Spark reads: what belongs to one, and code over them in tasks
columns.py     the columns of a table, declared or found
documents.py   parses JSON texts, and unwraps those of Kafka Connect
strict.py      values of JSON in the types of a table; scalars.py converts single values
problem.py     errors of records, made in Spark SQL
"""
