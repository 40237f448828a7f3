"""Files of a table: manifests and manifest lists, position deletes, locations, partitions."""
