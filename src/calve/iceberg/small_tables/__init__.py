"""Small tables that calve keeps for itself: one file per partition, replaced and removed whole.

The metastore and dead letters live in such tables.
"""
