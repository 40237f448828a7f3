"""Topics of Kafka as a source that keeps its own position.

    definition   `kafka(...)`, and the source once it is open: which offsets are read next, and what is lost
    position     offsets: their text, how they are shared among checkpoints and tasks (pure)
    brokers      how brokers are reached; what a topic holds now
    tasks        reading ranges of offsets, on executors
    records      JSON values as typed columns, where no envelope reads them
    avro         Avro to the JSON that everything after it understands; registry has the schemas

Brokers are asked and records are read by librdkafka (`confluent-kafka`, the extra `kafka`), in Python tasks: no jar is
needed on the cluster, and none of another version of Spark is in the way. Which offsets a checkpoint has is decided
here and stored with its commit, so that nothing but the table and the state location is needed to go on; there is no
consumer group.
"""
