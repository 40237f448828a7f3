"""What every stage shares that runs work on Spark: tasks that report, and what a failure of Spark means.

causes.py      an exception of Python, of Py4J or of a task -> the chain of its causes
failures.py    a chain of causes -> one error of calve's: the only table of what is permanent and what is not
tasks.py       work in, values out: runs on executors, and tells what failed
"""
