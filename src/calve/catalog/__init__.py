"""Catalogs: connect, and load or create tables.

connect   properties -> a pyiceberg catalog; the embedded SQLite catalog
tables    a table name and a schema -> a table, created when missing
"""
