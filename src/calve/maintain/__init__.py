"""Table maintenance. Each job plans, rewrites and commits; commits of others in between take precedence.

convert   converts equality deletes, of any writer, to position deletes
compact   compacts small files, and files with many deleted rows
rewrite   rewrites one group of files in this process, or many with Spark tasks
"""
