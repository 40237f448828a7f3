"""Schemas: from Spark's columns to a table's, how an input fits, how a table evolves, and Arrow's view of it."""
