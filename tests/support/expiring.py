"""Snapshots expire by the same rules, but earlier: tests of expiry need not commit hundreds of them."""

import pytest

from calve.iceberg.snapshot import retention

KEPT, BATCH = 8, 3
MANY = KEPT + 2 * BATCH
"""As many commits as make snapshots expire."""


def expire_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep fewer snapshots, and let fewer expire at once."""
    monkeypatch.setattr(retention, "KEEP_ALL", KEPT)
    monkeypatch.setattr(retention, "BATCH", BATCH)
