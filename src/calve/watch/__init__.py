"""Watching sinks from outside their process: status files, liveness of processes, checks for monitors, sizes.

    status_files.py   reads and writes the status folder of a home
    process.py        whether the process of a run still exists
    check.py          what `calve status --check` reports
    reporter.py       keeps the status of a run up to date
    commits.py        tells others in the process about commits

Nothing here imports Spark, Iceberg or Arrow: `calve status` starts at once.
"""
