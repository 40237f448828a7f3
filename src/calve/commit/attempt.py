"""One attempt against the table: a claim or a commit.

Every attempt loads the table again and checks, in this order: UUID and rollback (belief), commit id (an earlier
attempt may have succeeded), fence, frontier, files. It then looks up the rows that a batch deletes by position in
exactly that state, and proposes one snapshot on top of it. Attempts never retry.

Position deletes are valid in one snapshot only. After a conflict they are removed by the next attempt, if the table
that it loads has another head, still belongs to this run and does not contain the batch; on the same head they are
reused. If the outcome of an attempt is unknown, its deletes stay until another attempt of the same batch is in the
table, so that no earlier one can be applied any more. A run that stops or halts in between leaves them behind.

If rows have ids, the ids that updated rows keep are valid in one snapshot only, too. The lookup therefore also returns
the rows of the batch, written again with these ids (`RowsWithIds`); they share the fate of the deletes. Once they are
in the table, the files of the batch that they replaced are removed with its key files.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from calve import faults
from calve.commit.belief import Trust, believe
from calve.commit.journal import Journal
from calve.commit.ports import Resolver, Stopwatch, TableStore
from calve.errors import (
    CheckpointGap,
    CommitConflict,
    FencedError,
    ProgressUnprovable,
)
from calve.model.checkpoint import Offsets, offsets_digest
from calve.model.files import Committable, ResolvedDeletes
from calve.model.progress import Fence, Progress
from calve.model.spec import OnForeignCommit, SinkSpec
from calve.model.table import Proposal, TableState


@dataclass
class _Resolution:
    """A lookup of deletes: for which batch, in which snapshot."""

    commit_id: str
    head: int | None
    format_version: int
    deletes: ResolvedDeletes
    may_be_in_table: bool = False
    """Whether an attempt with these deletes was applied, or has an unknown outcome."""
    applied: bool = False
    """Whether the table certainly contains these deletes."""

    def fits(self, committable: Committable, state: TableState) -> bool:
        """Whether it is valid for an attempt: positions are valid in one snapshot only, in one way to write them."""
        same = (self.head, self.format_version) == (state.head, state.format_version)
        return same and self.commit_id == committable.commit_id


class Attempts:
    """Everything that one run may do to its table. The run sets `fence` once, when it takes its epoch."""

    def __init__(
        self, spec: SinkSpec, table: TableStore, journal: Journal, resolver: Resolver, timed: Stopwatch
    ) -> None:
        self._spec = spec
        self._table = table
        self._journal = journal
        self._resolver = resolver
        self._timed = timed
        self._resolution = _Resolution("", None, 0, ResolvedDeletes())
        """The most recent lookup."""
        self._doubtful: list[ResolvedDeletes] = []
        """Earlier lookups of the same batch that were used by attempts with an unknown outcome."""
        self.fence = Fence(spec.version, 0, "")

    def observe(self) -> tuple[TableState, Progress | None]:
        """Load the table and decide which progress to trust. Raises ProgressUnprovable when that is not possible."""
        state = self._table.load()
        claimed = state.stated is not None or not self._spec.adopts or self._journal.has_claimed()
        trust = Trust.of(self._spec, self.fence.run_id, claimed=claimed)
        progress = believe(state, self._journal.known_uuid(), trust)
        if progress is None or progress.offsets_known:
            return state, progress
        found, offsets = self._journal.offsets_with(progress.digest)
        if not found:
            raise ProgressUnprovable(
                "the table states a commit of this sink without its offsets",
                detail=f"Snapshot {progress.snapshot_id}; property calve.sink.{self._spec.sink_id} is missing or old.",
                hint="Restore the table property, or start a new sink into a new table.",
            )
        return state, progress.with_offsets(offsets)

    def claim(self, begin: Offsets = None) -> tuple[TableState, Progress]:
        """Write this run's fence into the table with an empty snapshot, unless the table is sealed.

        Returns the state it was built on, and the progress that the table now has. A sink that never claimed the table
        starts reading at `begin`.
        """
        state, progress = self.observe()
        if progress:
            if progress.is_sealed(self._spec.generation) or progress.fence.run_id == self.fence.run_id:
                return state, progress
            self._check_newer(progress)
        repeated = progress or Progress.fresh(self._spec.sink_id, self.fence, begin)
        adopts = self._spec.adopts if progress is None else progress.adopting is not None
        if adopts and state.head is not None:
            proposal = Proposal(repeated.adopted_by(self.fence, state.uuid, state.head), retired=self._retired(state))
        else:
            proposal = Proposal(repeated.claimed_by(self.fence, state.uuid))
        claimed = self._table.commit(state, proposal)
        faults.reached("claim.after")
        return state, claimed

    def _check_newer(self, progress: Progress) -> None:
        """Raise FencedError unless this run is newer than the one that holds the table."""
        if not progress.fence < self.fence:
            raise self.fenced_by(progress)

    def _retired(self, state: TableState) -> tuple[Progress, ...]:
        """Other sinks that lose the table: all of them, unless foreign commits are accepted."""
        if self._spec.on_foreign_commit is OnForeignCommit.ACCEPT:
            return ()
        return tuple(other.retire() for other in state.others if not other.fence.retired)

    def record_adopted(self) -> Progress:
        """Record in the table that the adopted rows have been checked, so that batches may follow."""
        state, progress = self.observe()
        if progress is None:
            raise ProgressUnprovable("the table shows no commit of this sink, although this run claimed it")
        self._check_owner(progress)
        return progress if progress.adopting is None else self._table.commit(state, Proposal(progress.checked()))

    def commit(self, committable: Committable, *, catching_up: bool = False) -> Progress:
        """Commit a committable, unless the table already contains it.

        `catching_up`: adopted rows may be newer than what has been read so far.
        """
        with self._timed("load"):
            state, progress = self.observe()
        if progress is None:
            raise ProgressUnprovable("the table shows no commit of this sink, although this run claimed it")
        landed = self._has_landed(committable, progress)
        only = self._resolution.may_be_in_table and not self._doubtful
        if landed:  # whatever the response was, the deletes of one attempt are in the table
            self._doubtful.clear()
            self._resolution.may_be_in_table = True
        self._check_owner(progress, landed=landed)
        if landed:  # by this run
            self._resolution.applied = only
            return progress
        if not self._resolution.fits(committable, state):
            self.discard_unused_deletes()
        self._check_lower(committable, progress)
        with self._timed("check"):
            gone = self.missing(committable)
        if gone:
            self.check_fence()  # a successor may have committed the batch since, and removed its keys
            raise CheckpointGap(
                "files of an uncommitted batch are missing",
                detail=f"{len(gone)} missing, including {gone[0]}.",
                hint="Restart the sink: it reads the changes again if the source still has them.",
            )
        replaces = committable.generation > progress.generation
        if not replaces:
            self._check_adopted(progress)
        with self._timed("lookup"):
            deletes = ResolvedDeletes() if replaces else self._deletes_of(committable, state)
        proposal = Proposal(
            replace(
                self._progress_of(committable, state.uuid),
                key_index=deletes.key_index or progress.key_index,
                adopted=None if replaces else progress.adopted,
                catching_up=progress.catching_up and catching_up and not replaces,
                letters=committable.letters or progress.letters,
                commits=progress.commits + 1,
                changes=progress.changes + committable.totals.changes,
                committed_ms=self._timed.clock.now_ms(),
            ),
            (deletes.rows.manifests if deletes.rows else committable.manifests) + deletes.manifests,
            committable.totals.plus(deletes.totals).plus(deletes.merged),
            replaces=replaces,
            replaced_deletes=deletes.replaced,
        )
        with self._timed("commit"):
            return self._propose(state, proposal)

    def _propose(self, state: TableState, proposal: Proposal) -> Progress:
        """Commit a batch, and keep track of whether the table may refer to its deletes."""
        used = self._resolution
        before, used.may_be_in_table = used.may_be_in_table, True
        try:
            progress = self._table.commit(state, proposal)
        except CommitConflict:
            used.may_be_in_table = before
            raise
        used.applied = True
        self._discard(self._doubtful, "another attempt of their batch was applied")
        self._doubtful = []
        return progress

    def discard_unused_deletes(self) -> None:
        """Remove the deletes of the last lookup if every attempt with them was certainly not applied."""
        last = self._resolution
        if last.may_be_in_table:
            return
        self._resolution = _Resolution("", None, 0, ResolvedDeletes())
        self._discard([last.deletes], "the attempts that they were written for were not applied")

    def _discard(self, lookups: Sequence[ResolvedDeletes], why: str) -> None:
        for deletes in lookups:
            if deletes.manifests:
                self._table.discard_deletes(deletes.manifests, why)
            if deletes.rows:
                self._table.discard_files(deletes.rows.new, why)

    def _has_landed(self, committable: Committable, progress: Progress) -> bool:
        """Whether the table already contains the committable: an earlier attempt succeeded without a response."""
        return progress.commit_id == committable.commit_id

    def _check_owner(self, progress: Progress, *, landed: bool = False) -> None:
        """Raise FencedError unless this run holds the table."""
        if progress.fence.run_id != self.fence.run_id:
            raise self.fenced_by(progress, landed=landed)

    def _check_lower(self, committable: Committable, progress: Progress) -> None:
        if progress.next_lower(committable.generation) != committable.batch.lower:
            raise CheckpointGap(
                "the batch does not start at the table's frontier",
                detail=f"The table's frontier is {progress.frontier}; the batch is {committable.batch}.",
                hint="Restart the sink: it continues from the table's progress.",
            )

    def _check_adopted(self, progress: Progress) -> None:
        if progress.adopting is not None:
            raise ProgressUnprovable("the adopted rows have not been checked yet")

    def _deletes_of(self, committable: Committable, state: TableState) -> ResolvedDeletes:
        """Look up the rows to delete, or reuse what an earlier attempt on the same snapshot found."""
        if not committable.keys:
            return ResolvedDeletes()
        known = self._resolution
        if known.fits(committable, state) and not self._table.missing_files(known.deletes.all_manifests):
            return known.deletes
        self.discard_unused_deletes()
        faults.reached("resolve.before")
        deletes = self._resolver.resolve(state, committable.keys, committable.commit_id, committable.manifests)
        faults.reached("resolve.after")
        if known.commit_id != committable.commit_id:
            self._doubtful = []
        elif known.may_be_in_table:
            self._doubtful.append(known.deletes)
        self._resolution = _Resolution(committable.commit_id, state.head, state.format_version, deletes)
        return deletes

    def with_delete_totals(self, committable: Committable) -> Committable:
        """Add the deletes to the totals of a committed committable, if this run looked them up."""
        known = self._resolution
        if known.commit_id != committable.commit_id:
            return committable
        return replace(committable, totals=committable.totals.plus(known.deletes.totals))

    def remove_keys(self, committed: Committable) -> None:
        """Remove the key files of a committed batch: no attempt needs them any more, and no reader ever did.

        The same holds for data files that were replaced by files with ids, if this run knows that they were: otherwise
        they are left behind.
        """
        if committed.keys:
            self._table.remove_keys(committed.keys)
        known = self._resolution
        if known.applied and known.commit_id == committed.commit_id and known.deletes.rows:
            self._table.discard_files(known.deletes.rows.unused, "their rows were committed with their ids")

    def _progress_of(self, committable: Committable, table_uuid: str) -> Progress:
        return Progress(
            sink_id=self._spec.sink_id,
            fence=self.fence,
            frontier=committable.batch.upper,
            lower=committable.batch.lower,
            commit_id=committable.commit_id,
            query_id=committable.query_id,
            checkpoint=committable.checkpoint,
            offsets=committable.offsets,
            digest=offsets_digest(committable.offsets),
            table_uuid=table_uuid,
            generation=committable.generation,
            ahead=committable.ahead,
        )

    def load_fenced(self) -> TableState:
        """Load the table. Raises FencedError if this run no longer holds the fence."""
        state, progress = self.observe()
        if progress:
            self._check_owner(progress)
        return state

    def merge_manifests(self) -> None:
        """Keep the table's manifest list short, if this run still holds the fence."""
        state, progress = self.observe()
        if progress and progress.fence.run_id == self.fence.run_id:
            self._table.merge_manifests(state)

    def missing(self, committable: Committable) -> tuple[str, ...]:
        """Return the files of a committable that no longer exist."""
        named = committable.manifests + committable.keys
        return self._table.missing_files(named) if named else ()

    def check_fence(self) -> None:
        """Raise FencedError if another run owns the table. That takes precedence over every other error."""
        self.load_fenced()

    def fenced_by(self, progress: Progress, *, landed: bool = False) -> FencedError:
        """Build the error of a run that finds another run's fence in the table."""
        note = " The last batch of this run was committed before that." if landed else ""
        return FencedError(
            f'sink "{self._spec.name}" lost its fence',
            detail=f"{progress.fence} committed snapshot {progress.snapshot_id}; this run holds {self.fence}.{note}",
            hint="Another run of this sink is active. Stop this process.",
        )
