"""Catalogs: connections, and commits whose outcome is known.

    connect        properties -> a pyiceberg catalog
    properties     a connection -> pyiceberg's properties
    guarded        what tables and catalogs may not decide: code, stores, logins
    checked        checks commits of SQL, Hive and Glue before they are sent
    rest           the client of REST catalogs: logins, signatures, time-outs
    glue, hive     the clients of Glue and of Hive's metastore
    embedded       the SQLite catalog of one machine
    home_tables    asks that of a home folder without pyiceberg
    outcome        sends commits: applied, not applied, or unknown
    discard        removes files of tables
    failures       errors for a failing catalog or store

Besides `iceberg`, which builds on it, and `storage` no other package touches pyiceberg's internals.
"""
