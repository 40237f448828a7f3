"""Snapshots: how one is made, what others it follows, which go, and what must stay."""
