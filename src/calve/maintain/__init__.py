"""Keeps tables in shape. Each job has a plan, a run and a commit, and gives way to whoever commits in between.

convert   equality deletes, of any writer -> position deletes
"""
