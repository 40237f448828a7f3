"""Plans reads of a snapshot: scans, key lookups, the deletes that apply, and the files that can be skipped."""
