"""calve keeps Apache Iceberg tables equal to a stream of changes, exactly once, on Spark."""
