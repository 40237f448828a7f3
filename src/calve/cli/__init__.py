"""The command line: prints and shows, decides nothing."""
