"""The metastore: metadata kept as Iceberg tables, one table for each component.

filters      conditions on units, with two-valued logic, for rows and for Arrow tables
units        a unit class -> columns, partition keys, storage keys, scopes
component    reads and modifies the units of one table
modify       overwrites and deletes in one snapshot
config       the configuration and its layers; storage keys -> folders
metastore    components by name
statistics   typed statistics of columns and of metadata, mergeable
tables       the component of tables, their segments, files, row groups and partitions
views        the component of views
catalog_file the SQLite file of the catalog, read without Iceberg
information  the rows of INFORMATION_SCHEMA, and a copy that is read without Iceberg
information_units   makes them out of units
requests     common queries of both
"""
