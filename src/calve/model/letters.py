"""Replays of dead letters: which ones, and what became of them."""

from dataclasses import dataclass
from datetime import datetime

from calve.errors import InvalidInput


def keeps_no_letters(sink: str, name: str) -> InvalidInput:
    """The error for a sink that halts at bad rows; `sink` is its label, `name` as SQL writes it."""
    return InvalidInput(
        f"{sink} keeps no dead letters",
        detail="It halts at a record that cannot be converted.",
        hint=f"ALTER SINK {name} SET (ON BAD ROW = 'dead letter') keeps them instead.",
    )


@dataclass(frozen=True)
class LetterChoice:
    """Which dead letters of a sink are replayed."""

    reason: str = ""
    """A part of the reason, in any case."""
    since: datetime | None = None
    """Letters that were added then or later."""
    force: bool = False
    """Apply them even if they may be older than what the table contains."""

    def takes(self, reason: str, met_at: datetime) -> bool:
        """Whether a letter is chosen."""
        return self.reason.lower() in reason.lower() and (self.since is None or met_at >= self.since)


@dataclass(frozen=True)
class ReplayReport:
    """What a replay of dead letters did, or with a dry run would do."""

    sink: str
    dry_run: bool = False
    applied: int = 0
    """Letters that became changes of the table, and left the dead letter table."""
    finished: int = 0
    """Letters that an interrupted replay had applied, and that this one removed from the dead letter table."""
    failed: tuple[tuple[str, int], ...] = ()
    """Why letters are still bad, and how many of them; they stay."""
    skipped: tuple[tuple[str, int], ...] = ()
    """Why letters cannot be replayed, and how many of them; they stay."""
    snapshots: tuple[int, ...] = ()
    """The snapshots with their rows."""

    @property
    def left(self) -> int:
        """Chosen letters that stay."""
        return sum(count for _, count in self.failed + self.skipped)

    def __str__(self) -> str:
        word = "can be applied" if self.dry_run else "applied"
        finished = f", {self.finished} of an interrupted replay" if self.finished else ""
        return f"{self.sink}: {self.applied} {word}{finished}, {self.left} left"
