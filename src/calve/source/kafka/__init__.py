"""Topics of Kafka as a source that keeps its own position.

    definition   `kafka(...)`, and the open source: which offsets are read next, and which are lost
    position     offsets: their text, and how they are split among checkpoints and tasks (pure)
    brokers      connections to brokers; what a topic holds now
    reader       reads ranges of offsets on executors; JSON values as typed columns, where no envelope reads them
    registry     schemas of a schema registry
    avro         decodes Avro into the JSON that everything after it understands
    protobuf     the same for Protobuf

librdkafka (`confluent-kafka`, the extra `kafka`) queries brokers and reads records, in Python tasks: the cluster needs
no jar, and none can conflict with its version of Spark. The offsets of a checkpoint are decided here and stored with
its commit, so that the table and the state location are all that is needed to resume; there is no consumer group.
"""
