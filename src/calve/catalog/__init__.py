"""Catalogs: connect, and load or create tables.

    connect        properties -> a pyiceberg catalog
    rest           the client of REST catalogs: logins, signatures, time-outs
    pace           servers that want to be left alone for a while
    aws            credentials that renew themselves
    stores         filesystems of files, by location
    glue           the client of Glue
    checked        what clients of SQL, Hive and Glue find before they send a commit
    embedded       the SQLite catalog of one machine
    metadata_text  metadata files, quickly
    tables         a table name and a schema -> a table, created when missing
    outcome        sends commits: applied, not applied, or unknown
    discard        removes files of tables
    failures       what a failing catalog or store means
    names          names that were meant

With `iceberg`, which builds on it, the only package that touches pyiceberg's internals.
"""
