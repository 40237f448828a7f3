"""One sink from top to bottom, and all sinks of a home side by side.

sink.py        what the user asks for (`calve.sink`)     build.py   the same out of a definition
start.py       puts the parts of a run together           feed.py, spark_feed.py   bring checkpoints
pipeline.py    where all stages meet                      query.py   a sink that runs
monitor.py     what it says of itself                     supervisor.py   all sinks of a home
"""
