"""The Python interface besides sinks: verification, manual maintenance, folders of files."""
