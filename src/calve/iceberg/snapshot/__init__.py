"""Snapshots: how they are built, what they replace, which expire, and which must stay."""
