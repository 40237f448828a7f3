"""Envelopes: records become changes.

Each has a plan on the driver (`upsert`) and, for JSON, a reader in tasks (`upsert_records`).
"""
