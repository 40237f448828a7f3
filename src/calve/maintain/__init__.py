"""Table maintenance. Each job plans, rewrites and commits; commits of others in between take precedence.

jobs        the jobs of maintenance by hand, with their results
compact     compacts small files, and files with many deleted rows
rewrite     rewrites one group of files in this process, or many with Spark tasks
convert     converts equality deletes, of any writer, to position deletes
manifests   groups manifests by partition
expire      expires snapshots
removal     removes the files of expired snapshots; removal_tasks compares many of them with Spark tasks
orphans     removes files that nothing refers to
"""
