"""When checkpoints are taken. A commit interval says when snapshots are made and never how much is read."""

from dataclasses import dataclass
from typing import Final

CHECKPOINTS_PER_WINDOW: Final = 300
"""About so many checkpoints are staged for a window when nobody said how often they are taken."""


@dataclass(frozen=True)
class Pace:
    """The rest after a checkpoint that left nothing behind. A backlog is read without any rest."""

    every: float = 0.0
    """Least seconds between the starts of two checkpoints; 0: as data comes."""
    at_multiples: bool = False
    """Checkpoints start at multiples of `every`: each of them is the commit of its window."""
    required: bool = True
    """Whether to rest where the source does not say if it has more."""

    @classmethod
    def of(cls, commit_every: float, checkpoint_every: float, *, replay: bool = False) -> "Pace":
        """From the two intervals, in seconds and 0 where not given. `replay`: one checkpoint for every window."""
        if commit_every and replay:
            return cls(commit_every, at_multiples=True)
        if commit_every and not checkpoint_every:
            return cls(commit_every / CHECKPOINTS_PER_WINDOW, required=False)
        return cls(checkpoint_every)

    def rest(self, started: float, now: float, now_ms: int) -> float:
        """Seconds to wait after a checkpoint that started at `started`; `now` is of the same clock."""
        if self.at_multiples:
            return self.every - now_ms / 1000 % self.every
        return started + self.every - now
