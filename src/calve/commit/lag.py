"""How far a table is behind its source, for reports. Nothing is decided by it."""

from calve.model.checkpoint import Offsets


class Lag:
    """Remembers when checkpoints left nothing of the source behind, until they are in the table."""

    def __init__(self) -> None:
        self._read: list[tuple[Offsets, int | None]] = []
        self.unread: int | None = None
        """Of what the source had when it was asked last; None before that."""
        self.current_ms: int | None = None
        """The table shows all that the source had at this time; None when that is not known."""

    def read(self, end: Offsets, asked_ms: int, unread: int) -> None:
        """A checkpoint up to `end` is being read, and leaves so much behind."""
        self.unread = unread
        self._read.append((end, None if unread else asked_ms))

    def found_nothing(self, asked_ms: int, *, pending: bool) -> None:
        """The source had nothing more; `pending`: not all that was read is in the table."""
        self.unread = 0
        if not pending:
            self.current_ms = asked_ms

    def committed(self, offsets: Offsets) -> None:
        """All up to `offsets` is in the table."""
        ends = [end for end, _ in self._read]
        if offsets not in ends:
            return
        done = ends.index(offsets) + 1
        whole = [asked_ms for _, asked_ms in self._read[:done] if asked_ms is not None]
        self.current_ms = whole[-1] if whole else self.current_ms
        self._read = self._read[done:]
