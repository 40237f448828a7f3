"""Keeps tables in shape. Each job has a plan, a run and a commit, and gives way to whoever commits in between.

convert   equality deletes, of any writer -> position deletes
compact   small files, and files with many deleted rows -> fewer and larger ones
rewrite   one group of such files; tasks: many, on a cluster
"""
