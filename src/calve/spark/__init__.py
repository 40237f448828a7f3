"""Everything about Spark itself that the stages share.

session.py     starts Spark, or returns the running session; java.py finds a Java for it, workers.py forks its workers
executors.py   checks that executors have calve
tasks.py       work in, values out: the one way to run pickled work on executors
failures.py    an exception of Python, Py4J or a task -> one error of calve's: the only table of what is permanent
sqltext.py     pieces of Spark SQL as text
version.py     what differs between versions of Spark, and Spark's internals
"""
