"""What is read, and how records become changes.

port        what a source of calve's own offers; bounded, files, generator are such sources
ledger      which files were read, durable before they are read
envelope    records -> changes; upsert and debezium are its two halves
records     JSON records in columns `value` and `key`; cells, scalars, coding, retype convert their values
finish      the last step of every envelope; problem makes errors inside Spark
"""
