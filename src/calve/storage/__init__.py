"""Files and small records, here or in any store: filesystems, listings, the state location, durable writes."""
