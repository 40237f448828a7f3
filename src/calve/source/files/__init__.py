"""A folder of files as a source: which files are new, and how to read their records."""
