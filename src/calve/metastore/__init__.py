"""The metastore: metadata kept as Iceberg tables, one table for each component.

    filters      conditions on units, with two-valued logic
    masks        filters over Arrow tables
    units        a unit class -> columns, partition keys, storage keys, scopes
    places       storage keys -> folders
    component    read and modify the units of one table
    modify       overwrites and deletes in one snapshot
    config       what is where, in layers
    metastore    components by name
    statistics   typed statistics of columns and of metadata, mergeable
    tables       the component of tables, their segments, files, row groups and partitions
    requests     what is asked of it most often
    views        the component of views

It stands on `calve.iceberg` and `calve.catalog`, and on nothing else of calve.
"""
