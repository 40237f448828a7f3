"""What a snapshot holds: scans, look-ups of keys, deletes that apply, files that need not be read."""
