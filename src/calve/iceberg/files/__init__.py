"""Files of a table: manifests and their lists, position deletes, locations, partitions."""
