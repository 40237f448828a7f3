"""Clocks of tests."""


class ManualClock:
    """Moves when the test says so."""

    def __init__(self, ms: int = 0) -> None:
        self.ms = ms

    @property
    def seconds(self) -> float:
        """The same time."""
        return self.ms / 1000

    @seconds.setter
    def seconds(self, value: float) -> None:
        self.ms = round(value * 1000)

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.seconds
