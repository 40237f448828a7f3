"""A folder of files as a source: which files are new, and how their lines become records."""
