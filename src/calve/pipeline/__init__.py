"""One sink from top to bottom, and all sinks of a home side by side.

sink.py        the Python interface (`calve.sink`)        build.py   builds the same sink from a definition
start.py       assembles the parts of a run               feed.py, spark_feed.py   deliver checkpoints
pipeline.py    where all stages meet                      query.py   the handle of a running sink
monitor.py     metrics, log and status of a run           supervisor.py   runs all sinks of a home
upkeep.py      compacts in the background                 registration.py   reports the table to the metastore
"""
