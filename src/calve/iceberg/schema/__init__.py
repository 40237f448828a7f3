"""Schemas: Spark columns to table columns, how an input fits a table, how a table evolves, and Arrow schemas."""
