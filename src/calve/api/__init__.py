"""What `calve` offers beside sinks: verification, maintenance by hand, folders of files."""
