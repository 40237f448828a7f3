"""What is read, and how records become changes.

port        what a source of calve's own offers; bounded, files, generator are such sources
ledger      which files were read, durable before they are read
envelope    records -> changes: upsert and debezium
columns     the columns of a table, declared or found; order, condition, retype, finish work on columns of frames
arrowmap    Python code over rows, in tasks: upsert_json and change_records read JSON with it
strict      values of JSON in the types of a table; documents parses texts, scalars converts single values
problem     errors made inside Spark
"""
