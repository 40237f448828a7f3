"""Rewrites the manifests of a table by partition, with a snapshot that changes neither rows nor files."""

import logging
from dataclasses import dataclass

from calve.catalog.connect import Catalog
from calve.clock import Clock, IdSource
from calve.errors import CommitConflict
from calve.iceberg.loading import load_table
from calve.iceberg.snapshot.manifest_rewrite import (
    ENOUGH,
    ManifestPlan,
    commit_manifests,
    plan_manifests,
    write_planned,
)
from calve.model.spec import TableName
from calve.retry import retry_on

ATTEMPTS = 20
"""Attempts of a commit: each takes a moment."""
ROUNDS = 5
"""Plans that others may invalidate before a rewrite gives up."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RewrittenManifests:
    """Result of a rewrite."""

    snapshot_id: int
    before: int
    """Manifests of the table before it."""
    after: int
    entries: int
    """Entries that were rewritten."""


def due_manifests(catalog: Catalog, name: TableName, branch: str = "main") -> ManifestPlan | None:
    """Return what `rewrite_manifests` would do; None if nothing. Raises TransientError, InvalidInput."""
    return plan_manifests(load_table(catalog, name), branch)


def rewrite_manifests(
    catalog: Catalog, name: TableName, clock: Clock, ids: IdSource, branch: str = "main", enough: int = ENOUGH
) -> RewrittenManifests | None:
    """Group the entries of all manifests by partition; None if they are already. Other writers may continue.

    A manifest ends after `enough` entries with the partition of its last entry. Raises CommitConflict when others
    rewrote the same manifests every time; CommitUnknown, TransientError, InvalidInput.
    """
    for _ in range(ROUNDS):
        plan = plan_manifests(load_table(catalog, name), branch, enough)
        if plan is None:
            return None
        written = write_planned(plan, ids)
        try:
            snapshot_id = retry_on(
                CommitConflict,
                ATTEMPTS,
                lambda written=written: commit_manifests(written, load_table(catalog, name), clock, ids),  # type: ignore[misc]
                lambda error: _log.info("committing manifests of %s again: %s", name, error.primary),
            )
        except BaseException:
            written.discard("their rewrite was not committed")
            raise
        if snapshot_id is not None:
            before, after = plan.kept + len(plan.replaced), plan.kept + len(plan.groups)
            _log.info("rewrote manifests of %s: %d became %d", name, before, after)
            return RewrittenManifests(snapshot_id, before, after, plan.entries)
        written.discard("other writers replaced the same manifests")
    raise CommitConflict(f'other writers replaced manifests of "{name}" while they were rewritten')
