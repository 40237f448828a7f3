"""Files and small records, locally or in any store: filesystems, listings, the state location, durable writes."""
